#![forbid(unsafe_code)]
//! TODO
fn main() {}
