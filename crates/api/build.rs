//! Generates the protobuf types with the pure Rust parser: no `protoc` needed.

fn main() {
    println!("cargo::rerun-if-changed=proto");
    protobuf_codegen::Codegen::new()
        .pure()
        .cargo_out_dir("proto")
        .include("proto")
        .inputs(["proto/encryption.proto", "proto/payload.proto", "proto/envelope.proto"])
        .run_from_script();
}
