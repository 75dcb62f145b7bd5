//! The runner of kernel tests and benches, as a library: a crate of kernels makes its own
//! runner with three lines.
//!
//! ```ignore
//! fn main() -> std::process::ExitCode {
//!     my_kernels::link();
//!     iron_runner::main()
//! }
//! ```
//!
//! The tests run in one process for each processor (`--jobs`), and one that a kernel takes down is a
//! failure of the test that it ran.
//!
//! Exit codes: 0 all passed, 1 something failed, 2 wrong usage, 3 a backend is missing,
//! 4 nothing was selected. Over several backends the worst wins: 1, then 4, then 3.

/// As the standard macro, but a reader that has left (`… | head`) ends nothing: the exit code still
/// tells. Any other failure to write is fatal.
macro_rules! print {
    ($($piece:tt)*) => {
        $crate::write_out(format_args!($($piece)*))
    };
}

/// `print!` of a line.
macro_rules! println {
    ($($piece:tt)*) => {
        $crate::write_out(format_args!("{}\n", format_args!($($piece)*)))
    };
}

mod bench;
mod check;
mod command;
mod contracts;
mod explain;
mod layouts;
mod list;
mod report;
mod select;
mod test;
mod tune;
mod workers;

pub use check::{Checked, Found, Place, Request, check};
pub use command::{main, run};

fn write_out(text: std::fmt::Arguments<'_>) {
    write_to(&mut std::io::stdout(), text);
}

fn write_to(out: &mut dyn std::io::Write, text: std::fmt::Arguments<'_>) {
    if let Err(error) = out.write_fmt(text)
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        eprintln!("standard output cannot be written: {error}");
        std::process::exit(1);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_reader_that_has_left_ends_nothing() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        drop(reader);
        super::write_to(&mut writer, format_args!("{}", "text"));
    }
}
