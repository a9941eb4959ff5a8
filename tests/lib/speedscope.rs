//! Parser for profiles in the speedscope format. Source: speedscope.app/file-format-schema.json.

use std::path::Path;

use serde_json::Value;

/// A sample: a stack with its weight.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Name of the profile: command, process ID and thread.
    pub thread: String,
    /// Outermost first.
    pub frames: Vec<Frame>,
    /// Weight, in the profile's unit.
    pub weight: u64,
}

/// A frame of a stack.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The method or function.
    pub name: String,
    /// Source file, or object file.
    pub file: Option<String>,
    /// The source line.
    pub line: Option<u64>,
    /// Kind of code: `java`, `inlined`, `interpreted`, `stub` and so on.
    pub kind: String,
}

/// Reads a profile.
///
/// # Panics
/// If it is not one.
pub fn read(path: &Path) -> Vec<Sample> {
    let text = std::fs::read_to_string(path).expect("the profile is written");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let list = |value: &Value| value.as_array().expect("an array").clone();
    let frames: Vec<Frame> = list(&json["shared"]["frames"]).iter().map(frame).collect();
    let mut samples = Vec::new();
    for profile in list(&json["profiles"]) {
        let weights = list(&profile["weights"]);
        for (stack, weight) in list(&profile["samples"]).iter().zip(weights) {
            let index =
                |id: &Value| usize::try_from(id.as_u64().expect("an index")).expect("small");
            samples.push(Sample {
                thread: profile["name"].as_str().expect("a name").to_owned(),
                frames: list(stack).iter().map(|id| frames[index(id)].clone()).collect(),
                weight: weight.as_u64().expect("a number"),
            });
        }
    }
    samples
}

fn frame(json: &Value) -> Frame {
    Frame {
        name: json["name"].as_str().expect("a name").to_owned(),
        file: json["file"].as_str().map(str::to_owned),
        line: json["line"].as_u64(),
        kind: json["kind"].as_str().expect("a kind").to_owned(),
    }
}
