//! Renders Helm charts and Kustomize directories, and checks the objects against the schemas of Kubernetes and
//! of the Prometheus Operator.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::receiver::{downloaded_path, listed_path};

/// API group of the Prometheus Operator.
const OPERATOR: &str = "monitoring.coreos.com/";

/// Returns the path of a program or folder that `tests/deployers` downloads.
///
/// # Panics
/// If the download fails.
pub fn deployer_path(name: &str) -> PathBuf {
    listed_path("deployers", name)
}

/// Runs Helm without access to a cluster.
///
/// # Errors
/// The message of Helm, if it fails.
///
/// # Panics
/// If Helm cannot be run.
pub fn helm(args: &[&str]) -> Result<String, String> {
    run(&deployer_path("helm"), args)
}

/// Renders a directory with the Kustomize that is part of kubectl.
///
/// # Errors
/// The message of kubectl, if it fails.
///
/// # Panics
/// If kubectl cannot be run.
pub fn kustomize(directory: &Path) -> Result<String, String> {
    run(&deployer_path("kubectl"), &["kustomize", directory.to_str().expect("a path in UTF-8")])
}

fn run(program: &Path, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    let output = command.args(args).env("KUBECONFIG", "/dev/null").output().expect("run it");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// Parses manifests, and checks their objects for a version of Kubernetes. Returns the objects of each
/// manifest, and the errors.
///
/// # Panics
/// If a manifest is no YAML, or if the check cannot be run.
pub fn check(version: &str, manifests: &[&str]) -> (Vec<Vec<Value>>, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/check.py")).arg(version);
    for (number, manifest) in manifests.iter().enumerate() {
        let path = folder.path().join(format!("{number}.yaml"));
        fs::write(&path, manifest).expect("write a manifest");
        command.arg(path);
    }
    command.env("PYTHONPATH", downloaded_path("kubernetes")).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.stderr(Stdio::inherit()).output().expect("run check.py");
    assert!(output.status.success(), "check.py failed");
    let (mut all, mut errors) = (Vec::<Vec<Value>>::new(), Vec::new());
    for line in String::from_utf8(output.stdout).expect("UTF-8").lines() {
        let checked: Vec<Value> = serde_json::from_str(line).expect("JSON");
        for one in &checked {
            if let Some(error) = one["error"].as_str() {
                errors.push(format!("{} {error}", one["object"]["kind"]));
            }
        }
        all.push(checked.into_iter().map(|mut one| one["object"].take()).collect());
    }
    let objects = all.iter().flatten();
    let of_operator: Vec<_> = objects.filter(|object| is_of_operator(object)).collect();
    if !of_operator.is_empty() {
        errors.extend(operator_errors(&of_operator));
    }
    (all, errors)
}

fn is_of_operator(object: &Value) -> bool {
    object["apiVersion"].as_str().is_some_and(|version| version.starts_with(OPERATOR))
}

/// Checks objects of the Prometheus Operator: their fields and types, and values such as durations.
fn operator_errors(objects: &[&Value]) -> Vec<String> {
    let package = "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";
    let (mut types, mut values) = (String::new(), String::new());
    for (number, object) in objects.iter().enumerate() {
        let kind = object["kind"].as_str().expect("a kind");
        types += &format!(
            "import type {{ I{kind} as I{number} }} from \"{package}/{kind}\";\n\
             export const o{number}: I{number} = {object};\n"
        );
        values += &format!(
            "import {{ {kind} as K{number} }} from \"{package}/{kind}\";\n\
             try {{ new K{number}({object}).validate(); }} catch (e) {{ console.log(e.message); }}\n"
        );
    }
    let mut errors = type_errors(&types);
    errors.extend(node("values.mjs", &values, &["values.mjs"]));
    errors
}

/// Compiles a TypeScript program, and returns the errors: unknown fields, and fields of another type. The
/// program may import the types that `tests/deployers` downloads.
///
/// # Panics
/// If the compiler cannot be run.
pub fn type_errors(program: &str) -> Vec<String> {
    let tsc = ["node_modules/typescript/bin/tsc", "--noEmit", "--strict", "--skipLibCheck"];
    node("types.ts", program, &[&tsc[..], &["--module", "nodenext", "types.ts"]].concat())
}

/// Writes a file, runs Node in its folder, and returns the lines that Node prints.
fn node(name: &str, content: &str, args: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let modules = deployer_path("types").join("node_modules");
    symlink(modules, folder.path().join("node_modules")).expect("a link");
    fs::write(folder.path().join(name), content).expect("write a file");
    let output = Command::new("node").args(args).current_dir(folder.path()).output();
    let output = output.expect("run node");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    assert!(output.status.success() || !lines.is_empty(), "node failed without a message");
    lines
}
