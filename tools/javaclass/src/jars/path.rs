//! The jars, folders and modules on a JVM's command line. Jars added by a manifest's `Class-Path`, and
//! files that a program opens by itself, are not included. `read_jars` also reads such a file if a loaded
//! class comes from it.

use libjvmprobe::process::{Target, launcher::WITH_VALUE, root::Root};

use crate::jars::{folder, zip::Limits};

/// Options whose value is a path of jars and folders.
const PATHS: [&str; 3] = ["-cp", "-classpath", "--class-path"];
/// Options whose value is a path of modules, and of folders of modules.
const MODULE_PATHS: [&str; 2] = ["-p", "--module-path"];

/// An element of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    path: String,
    is_module_path: bool,
}

/// Returns the absolute paths of the jars and folders with classes, in order. `lib/*` means all jars of
/// a folder.
pub fn class_path(target: &Target, root: &Root, limits: &mut Limits) -> Vec<String> {
    let Ok(arguments) = target.process.arguments() else { return Vec::new() };
    let working = target.process.working_path();
    let absolute = |path: String| match (path.starts_with('/'), &working) {
        (true, _) => Some(path),
        (false, Ok(working)) => Some(format!("{}/{path}", working.display())),
        (false, Err(_)) => None,
    };
    let mut paths = Vec::new();
    for Part { path, is_module_path } in path_elements(&arguments) {
        let Some(path) = absolute(path) else { continue };
        if let Some(folder) = path.strip_suffix("/*").filter(|_| !is_module_path) {
            paths.extend(folder::jars(root, folder, limits).unwrap_or_default());
        } else if is_jar(&path) || !is_module_path {
            paths.push(path);
        } else {
            // The folder contains modules, in jars and folders, or is a module itself.
            paths.extend(folder::jars(root, &path, limits).unwrap_or_default());
            let inner = folder::folders(root, &path, limits).unwrap_or_default();
            let is_module = |path: &String| root.file(format!("{path}/module-info.class").as_ref());
            paths.extend(inner.into_iter().chain([path]).filter(|path| is_module(path).is_ok()));
        }
    }
    paths
}

/// Whether a path names a jar, not a folder.
pub fn is_jar(path: &str) -> bool {
    [".jar", ".war", ".zip"].iter().any(|end| path.ends_with(end))
}

/// Returns the jars and folders that arguments name.
fn path_elements(arguments: &[String]) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = arguments.iter().skip(1);
    let is_path = |option: &str| PATHS.contains(&option) || MODULE_PATHS.contains(&option);
    while let Some(argument) = rest.next() {
        let (option, value) = match argument.split_once('=') {
            Some((option, value)) if option.starts_with("--") => (option, Some(value)),
            _ => (argument.as_str(), None),
        };
        if option == "-jar" {
            let path = rest.next().cloned();
            parts.extend(path.map(|path| Part { path, is_module_path: false }));
            break;
        } else if is_path(option) {
            let value = value.or_else(|| rest.next().map(String::as_str)).unwrap_or_default();
            let is_module_path = MODULE_PATHS.contains(&option);
            let elements = value.split(':').filter(|path| !path.is_empty());
            parts.extend(elements.map(|path| Part { path: path.to_owned(), is_module_path }));
        } else if WITH_VALUE.contains(&option) && value.is_none() {
            rest.next();
        } else if !argument.starts_with('-') {
            // The program's own arguments follow the main class.
            break;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths_in(line: &str) -> String {
        let arguments: Vec<_> = line.split(' ').map(str::to_owned).collect();
        let shown = |part: Part| if part.is_module_path { part.path + "!" } else { part.path };
        path_elements(&arguments).into_iter().map(shown).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn class_path_and_module_path_are_read_from_arguments() {
        for (line, expected) in [
            ("java -Xmx1g -cp a.jar:classes:/b.jar Main -cp c.jar", "a.jar classes /b.jar"),
            ("java --class-path=a.jar -jar app.jar x.jar", "a.jar app.jar"),
            ("java -p mods:m.jar -m m/Main", "mods! m.jar!"),
            ("java --module-path=mods -m m/Main", "mods!"),
            ("java --add-modules x.y -cp a.jar Main", "a.jar"),
            ("java --add-modules=x.y -cp a.jar Main", "a.jar"),
            ("java -cp lib/*::x Main", "lib/* x"),
            ("java -Da=b -cp x Main", "x"),
            ("java Main", ""),
            ("java -cp", ""),
        ] {
            assert_eq!(paths_in(line), expected, "{line}");
        }
        assert!(is_jar("/a.jar") && !is_jar("/classes"));
    }
}
