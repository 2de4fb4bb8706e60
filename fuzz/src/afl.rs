//! `butterfly-fuzz TARGET` under `cargo afl fuzz`.

#![forbid(unsafe_code)]

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    let Some(target) = butterfly_fuzz::target(&name) else {
        eprintln!("name a target: {:?}", butterfly_fuzz::TARGETS.map(|(name, _)| name));
        std::process::exit(2);
    };
    afl::fuzz!(|data: &[u8]| target(data));
}
