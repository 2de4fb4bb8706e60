//! Prints docs/drops.md, made of the declared drop reasons.

fn main() {
    print!("{}", butterfly_datapath::drops_document());
}
