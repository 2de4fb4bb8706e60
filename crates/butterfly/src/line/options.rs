//! Words and options as commands declare them, and those that every command takes.

use clap::{Arg, ArgAction};

/// Options that every command takes, before its own words or after them.
pub fn global_options() -> Vec<Arg> {
    vec![
        option("endpoint", "EP").short('e').help("ZeroMQ endpoint of the daemon (default: $BUTTERFLY_ENDPOINT, else tcp://127.0.0.1:9999)"),
        flag("verbose").short('v').help("print the request and the reply in text format"),
        option("timeout", "MS").short('t').help("milliseconds to wait for each operation, 0 for ever (default: 0; of commands that butterfly 0.13 does not have 5000, and they end at once if no daemon listens)"),
        option("key", "PATH")
            .short('k')
            .help("file with the key that the daemon has: encrypt what is sent, and take no reply that is not (default: $BUTTERFLY_KEY)"),
        flag("strict").help("fail, with exit code 1, for what is ignored and for a success that was probably not meant (default: $BUTTERFLY_STRICT)"),
        flag("legacy-encryption")
            .help("encrypt as butterfly 0.13 does, for a daemon that knows nothing else; it can be sent again by others"),
    ]
}

/// An option with one value; the last one given counts.
pub fn option(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).action(ArgAction::Set)
}

/// An option with one or more values, that may be repeated.
pub fn list(name: &'static str, value: &'static str) -> Arg {
    option(name, value).action(ArgAction::Append).num_args(1..)
}

/// An option without a value.
pub fn flag(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}

/// True if an argument takes several values.
pub fn is_list(argument: &Arg) -> bool {
    argument.get_num_args().is_some_and(|range| range.max_values() > 1)
}

/// A mandatory word after the command.
pub fn word(name: &'static str) -> Arg {
    Arg::new(name).value_name(name).required(true)
}

/// `--json` of the commands that have it.
pub fn json() -> Arg {
    flag("json").help("print JSON, for programs")
}
