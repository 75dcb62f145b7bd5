//! The `butter` command. All of it is in [`butter::cli`].

fn main() -> std::process::ExitCode {
    butter::cli::main()
}
