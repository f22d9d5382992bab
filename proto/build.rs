//! Compiles the contract with a protobuf compiler written in Rust, so that no `protoc` is needed.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    let files = ["hugepool/v1/pages.proto", "hugepool/v1/admin.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::Compiler::new(["."])?
        .include_imports(true)
        .include_source_info(true)
        .open_files(files)?
        .file_descriptor_set();

    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("hugepool.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)?;
    Ok(())
}
