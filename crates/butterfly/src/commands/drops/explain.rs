//! `butterfly drops --explain`: a section of docs/drops.md, which is made of the declarations of
//! the packet path.

use crate::failure::Failure;

const PAGE: &str = include_str!("../../../../../docs/drops.md");

/// The section of a reason, without what only pages need.
pub fn section(reason: &str) -> Result<String, Failure> {
    let mut sections = PAGE.split("\n## ").skip(1);
    let found = sections.find_map(|section| section.strip_prefix(reason)?.strip_prefix('\n'));
    let Some(text) = found else {
        let names: Vec<&str> =
            PAGE.split("\n## ").skip(1).filter_map(|section| section.lines().next()).collect();
        return Err(Failure::said(format!(
            "no drop reason is called {reason}\nhelp: the reasons are {}",
            names.join(", ")
        )));
    };
    let lines = text.trim().lines().filter(|line| !line.starts_with("- **Declared in"));
    let text: Vec<String> = lines.map(|line| line.replace("**", "")).collect();
    Ok(format!("{reason}\n\n{}\n", text.join("\n").trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_told_in_plain_words() {
        let text = section("spoofed-mac").unwrap();
        assert!(
            text.starts_with(
                "spoofed-mac\n\nThe source MAC address is not the vnic's own.\n\n- Usual cause: "
            ),
            "{text}"
        );
        assert!(
            text.contains("\n- What to do: ") && text.ends_with("\n- Charged to: the sender.\n"),
            "{text}"
        );
        assert!(!text.contains('*') && !text.contains('#'), "{text}");
    }

    #[test]
    fn only_whole_names_are_reasons() {
        for name in ["", "spoofed", "spoofed-macs", "Drop reasons"] {
            let Err(Failure::Said(text)) = section(name) else { panic!("{name}") };
            assert!(
                text.starts_with(&format!("no drop reason is called {name}\n"))
                    && text.contains("spoofed-mac, "),
                "{text}"
            );
        }
    }
}
