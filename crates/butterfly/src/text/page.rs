//! Building blocks of pages for the person on call.

use crate::text::table::{Align, safe, table};
use butterfly_api::proto::nic_show;
use std::fmt::Write;

/// A heading, with a blank line before it.
pub fn title(page: &mut String, title: &str) {
    // Writing to a string cannot fail.
    let _ = write!(page, "\n{title}\n");
}

/// A name and its value.
pub fn field(page: &mut String, name: &str, value: &str) {
    let _ = writeln!(page, "  {name:<16}  {}", safe(value));
}

/// A table under its title, or that there is nothing.
pub fn section<const N: usize>(
    page: &mut String,
    heading: &str,
    columns: [(&str, Align); N],
    rows: &[[String; N]],
) {
    title(page, heading);
    match rows {
        [] => page.push_str("  none\n"),
        rows => page.push_str(&table(2, columns, rows)),
    }
}

/// Values on one line.
pub fn listed(values: &[String]) -> String {
    match values {
        [] => "none".into(),
        values => values.join(", "),
    }
}

/// Drops by reason; those that counted nothing only if `all` are wanted.
pub fn drops(page: &mut String, drops: &[nic_show::Drop], all: bool) {
    let rows: Vec<_> = drops
        .iter()
        .filter(|drop| all || drop.count() != 0)
        .map(|drop| [safe(drop.reason()), drop.count().to_string(), safe(drop.description())])
        .collect();
    section(
        page,
        "drops",
        [("reason", Align::Left), ("frames", Align::Right), ("meaning", Align::Left)],
        &rows,
    );
}

/// Returns the setting of a VM's interface for the largest packet that reaches other hosts.
pub fn host_mtu(mtu: u32) -> String {
    format!(
        "host_mtu={mtu} on QEMU's -device virtio-net-pci: larger packets do not reach other hosts"
    )
}
