//! The examples, run as a reader would.

use std::env;
use std::process::{Command, Stdio};

/// `cargo run` of an example, with the features and the profile of this test, so that nothing is built twice; `features`
/// are those where this test has not all of them. It becomes the example. What it is told goes behind.
pub(crate) fn cargo_run(example: &str, features: &str) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command.args(["run", "--quiet", "--locked", "--example", example]);
    if cfg!(all(
        feature = "cli",
        feature = "conformance",
        feature = "json",
        feature = "lz4",
        feature = "metrics",
        feature = "otel",
        feature = "schema",
        feature = "tower"
    )) {
        command.arg("--all-features");
    } else {
        command.args(["--no-default-features", "--features", features]);
    }
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    // Of this test's own package: the build script of a dependency would run anew for them.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command.arg("--").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}
