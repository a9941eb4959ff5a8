//! Compiles a BPF program and generates its skeleton. Build scripts include this file as a module.
//!
//! clang writes the paths of the sources into the object's BTF. Two paths would differ between builds of
//! the same sources: the directory of the clone, and the temporary directory into which libbpf-cargo
//! writes libbpf's headers. Here the compiler replaces the first path, and finds the headers in a
//! directory of the build script instead, whose path it replaces, too.

use std::{env, fs, path::Path};

use libbpf_cargo::SkeletonBuilder;

/// Compiles `source` to `NAME.o` in `out`, and generates `NAME.skel.rs` there.
pub fn build(source: &str, name: &str, out: &Path) -> anyhow::Result<()> {
    let headers = out.join("libbpf");
    fs::create_dir_all(headers.join("bpf"))?;
    for (file, text) in libbpf_sys::API_HEADERS {
        fs::write(headers.join("bpf").join(file), text)?;
    }
    let arch = env::var("CARGO_CFG_TARGET_ARCH")?;
    let package = env::var("CARGO_PKG_NAME")?;
    SkeletonBuilder::new()
        .source(source)
        .obj(out.join(format!("{name}.o")))
        .clang_args([
            format!("-I{}", headers.display()),
            // Debian and Ubuntu have asm/*.h in a directory named after the architecture.
            format!("-I/usr/include/{arch}-linux-gnu"),
            format!("-ffile-prefix-map={}=libbpf", headers.display()),
            format!("-ffile-prefix-map={}={package}", env::var("CARGO_MANIFEST_DIR")?),
            "-Wall".into(),
            "-Werror".into(),
        ])
        .build_and_generate(out.join(format!("{name}.skel.rs")))?;
    Ok(())
}
