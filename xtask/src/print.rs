//! Printing that outlives its reader: `cargo xtask … | head` still ends with its own exit code.

/// As the standard macro, but a closed pipe is no error; any other failure to write is fatal.
macro_rules! println {
    () => {
        $crate::print::write_out(format_args!("\n"))
    };
    ($($piece:tt)*) => {
        $crate::print::write_out(format_args!("{}\n", format_args!($($piece)*)))
    };
}

pub(crate) fn write_out(text: std::fmt::Arguments<'_>) {
    if let Err(error) = std::io::Write::write_fmt(&mut std::io::stdout(), text)
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        eprintln!("error: standard output cannot be written: {error}");
        std::process::exit(1);
    }
}
