//! Completions for bash, of a client whose commands are chained with `+` and take the names of
//! things the daemon knows.

use clap::{Arg, ArgAction, Command};
use std::fmt::Write;

/// Completions of a word.
enum Words {
    /// A word without known completions.
    Free,
    /// One of these.
    Of(String),
    /// A file.
    File,
    /// Output of the client for this command.
    Printed(&'static str),
}

impl Words {
    fn of(argument: &Arg) -> Self {
        let possible = argument.get_possible_values();
        if !possible.is_empty() {
            return Self::Of(
                possible.iter().map(|value| value.get_name()).collect::<Vec<_>>().join(" "),
            );
        }
        let name = argument
            .get_value_names()
            .unwrap_or_default()
            .first()
            .map(ToString::to_string)
            .unwrap_or_default();
        match name.as_str() {
            "FILE" | "PATH" => Self::File,
            "NIC" | "IP|NIC" | "NIC|outside" => Self::Printed("nic list"),
            "SG" => Self::Printed("sg list"),
            "EXTERNAL" => Self::Printed("external list --ids"),
            "ROUTER" => Self::Printed("router list --ids"),
            "VNI" => Self::Printed("network list --ids"),
            choice
                if choice.contains('|')
                    && choice
                        .chars()
                        .all(|letter| letter.is_ascii_lowercase() || letter == '|') =>
            {
                Self::Of(choice.replace('|', " "))
            }
            _ => Self::Free,
        }
    }

    /// Returns the form that the script's function takes.
    fn shell(&self) -> String {
        match self {
            Self::Free => "free".into(),
            Self::Of(words) => format!("words {words}"),
            Self::File => "files".into(),
            Self::Printed(command) => format!("printed {command}"),
        }
    }
}

/// The script for `client`, whose own arguments every command takes.
pub fn bash(client: &Command) -> String {
    let name = client.get_name();
    let mut script = Script { name: name.to_owned(), ..Script::default() };
    script.visit(client, "");
    let globals: Vec<&Arg> =
        client.get_arguments().filter(|argument| !argument.is_positional()).collect();
    let (options, values) = described(name, &globals, "*");
    let Script { paths, cases, operands, values: own_values, .. } = script;
    format!(
        r#"# Completions of {name} for bash, made by `{name} generate bash`.
_{name}() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}}
    local path='' place=0 options='' below='' i
    # Where the words before lead to. A + begins a command of its own; words end at the first option.
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$path/${{COMP_WORDS[i]}}" in
            {paths}) path=$path/${{COMP_WORDS[i]}} place=0 ;;
            */+) path='' place=0 ;;
            */-*) place=-100 ;;
            *) place=$((place + 1)) ;;
        esac
    done
    COMPREPLY=()
    case "$path:$previous" in
{own_values}{values}    esac
    case $path in
{cases}    esac
    if [[ $word == -* ]]; then
        _{name}_propose words $options {options} -h --help -V --version
    elif [ -n "$below" ]; then
        [ "$place" -ne 0 ] || _{name}_propose words $below
    elif [ "$place" -ge 0 ]; then
        case "$path:$place" in
{operands}        esac
    fi
}}

_{name}_propose() {{
    local kind=$1 word=${{COMP_WORDS[COMP_CWORD]}}
    shift
    case $kind in
        words) mapfile -t COMPREPLY < <(compgen -W "$*" -- "$word") ;;
        printed)
            # Anybody's text: compgen -W would run what it finds in it.
            local line
            while IFS= read -r line; do
                printf -v line %q "$line"
                [[ $line != "$word"* ]] || COMPREPLY+=("$line")
            done < <({name} "$@" -t 300 2>/dev/null </dev/null)
            ;;
        files)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
            ;;
    esac
}}

complete -F _{name} {name}
"#,
        paths = paths.join(" | "),
        options = options.join(" "),
    )
}

#[derive(Default)]
struct Script {
    /// The program's.
    name: String,
    /// All commands, and the words before them.
    paths: Vec<String>,
    /// Completions of each command.
    cases: String,
    /// Words after a command, by their place.
    operands: String,
    /// Values of options.
    values: String,
}

impl Script {
    // Writing to a string cannot fail.
    fn visit(&mut self, command: &Command, path: &str) {
        let below: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        if !below.is_empty() {
            let pattern = if path.is_empty() { "''" } else { path };
            let _ = writeln!(self.cases, "        {pattern}) below='{}' ;;", below.join(" "));
        } else {
            let own: Vec<&Arg> =
                command.get_arguments().filter(|argument| !argument.is_positional()).collect();
            let (options, values) = described(&self.name, &own, path);
            let _ = writeln!(self.cases, "        {path}) options='{}' ;;", options.join(" "));
            self.values.push_str(&values);
            for (place, word) in command.get_positionals().enumerate() {
                let several = word.get_num_args().is_some_and(|range| range.max_values() > 1);
                let place = if several { "*".to_owned() } else { place.to_string() };
                let _ = writeln!(
                    self.operands,
                    "            {path}:{place}) _{}_propose {} ;;",
                    self.name,
                    Words::of(word).shell()
                );
            }
        }
        for below in command.get_subcommands() {
            let path = format!("{path}/{}", below.get_name());
            self.paths.push(path.clone());
            self.visit(below, &path);
        }
    }
}

/// The options' names, and the cases of their values.
fn described(name: &str, arguments: &[&Arg], path: &str) -> (Vec<String>, String) {
    let mut options = Vec::new();
    let mut cases = String::new();
    for argument in arguments {
        let short = argument.get_short().map(|letter| format!("-{letter}"));
        let long = argument.get_long().map(|long| format!("--{long}"));
        let own: Vec<String> = short.into_iter().chain(long).collect();
        if !matches!(argument.get_action(), ArgAction::SetTrue) {
            let patterns: Vec<String> =
                own.iter().map(|option| format!("{path}:{option}")).collect();
            let value = Words::of(argument).shell();
            let _ = writeln!(
                cases,
                "        {}) _{name}_propose {value}; return ;;",
                patterns.join(" | ")
            );
        }
        options.extend(own);
    }
    (options, cases)
}
