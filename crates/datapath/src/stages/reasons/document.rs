//! docs/drops.md: a section for each reason, made of its declaration.

use std::fmt::Write;

use crate::stages::reasons::{ReasonInfo, reasons};

const HEAD: &str = "\
# Drop reasons

<!-- Made of the declarations in crates/datapath. Change them there, and then this with:
     cargo run --quiet -p butterfly-datapath --example drops_document >docs/drops.md -->

Every frame that Butterfly drops counts in a named counter: of a vnic, of a network where other hosts are concerned, or of the uplink.

```
butterfly drops                          # of the whole host: by vnic, network and uplink, with rate, last packet, and what to do
butterfly drops vm-1 --watch             # of one vnic, again every second
butterfly drops --explain ingress-denied # a section of this page
```

In what is to be done, NIC stands for the vnic that the drop is charged to, and VNI for its network; `butterfly drops` puts in the names.
How to find out where a packet is lost: [troubleshooting.md](troubleshooting.md).
";

/// Returns the text of docs/drops.md.
pub fn drops_document() -> String {
    let mut text = HEAD.to_owned();
    text.push_str("\n| reason | means |\n|---|---|\n");
    for ReasonInfo { name, description, .. } in reasons() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| [{name}](#{name}) | {description} |");
    }
    for info in reasons() {
        text.push_str(&section(&info));
    }
    text
}

fn section(info: &ReasonInfo) -> String {
    let ReasonInfo { name, description, cause, remedy, charged, harmless, file, .. } = info;
    let harmless = if *harmless {
        "- **Harmless:** overviews and alerts do not count it as trouble.\n"
    } else {
        ""
    };
    format!(
        "\n## {name}\n\n{description}\n\n- **Usual cause:** {cause}.\n- **What to do:** {remedy}.\n- **Charged to:** {charged}.\n\
         {harmless}\
         - **Declared in:** [{file}](../{file})\n"
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const REPEAT: &str = "make it anew with: cargo run --quiet -p butterfly-datapath --example drops_document >docs/drops.md";

    #[test]
    fn the_page_in_docs_is_that_of_the_declarations() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/drops.md");
        let page = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}; {REPEAT}", path.display()));
        for (n, (have, want)) in page.lines().zip(drops_document().lines()).enumerate() {
            assert_eq!(have, want, "line {} of docs/drops.md is out of date; {REPEAT}", n + 1);
        }
        assert_eq!(
            page.lines().count(),
            drops_document().lines().count(),
            "docs/drops.md is out of date; {REPEAT}"
        );
    }

    #[test]
    fn every_reason_has_a_section_with_everything() {
        let page = drops_document();
        for info in reasons() {
            assert_eq!(page.matches(&format!("\n## {}\n", info.name)).count(), 1, "{}", info.name);
            let section = section(&info);
            for text in [info.description, info.cause, info.remedy, info.charged] {
                assert!(section.contains(text) && page.contains(&section), "{}: {text}", info.name);
            }
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(info.file);
            assert!(source.is_file(), "{}", source.display());
        }
    }
}
