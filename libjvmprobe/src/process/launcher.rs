//! The `java` launcher: its command line, and the libjvm.so that it loads. Source:
//! java.base/share/native/libjli/java.c.

use std::{env, ffi::OsStr, path::PathBuf};

use crate::{names::clean, process::Process};

/// Paths of libjvm.so relative to the folder of the launcher: JDK 9 and later first, then older JDKs.
const LIBRARIES: [&str; 5] = [
    "../lib/server/libjvm.so",
    "../lib/amd64/server/libjvm.so",
    "../lib/aarch64/server/libjvm.so",
    "../jre/lib/amd64/server/libjvm.so",
    "../jre/lib/aarch64/server/libjvm.so",
];

/// Options whose value is the next argument.
pub const WITH_VALUE: [&str; 12] = [
    "-cp",
    "-classpath",
    "--class-path",
    "-p",
    "--module-path",
    "--upgrade-module-path",
    "--add-modules",
    "--limit-modules",
    "--add-reads",
    "--add-exports",
    "--add-opens",
    "--source",
];

/// Returns the program that a JVM runs, from the arguments after the launcher's name: the value of `-jar` or `-m`, or
/// the first argument that is neither an option nor an option's value. Returns it with its index.
pub(crate) fn main_in<'a>(arguments: impl Iterator<Item = &'a str>) -> Option<(usize, &'a str)> {
    let mut arguments = arguments.enumerate();
    while let Some((index, argument)) = arguments.next() {
        match argument {
            "-jar" | "-m" | "--module" => return arguments.next(),
            _ if WITH_VALUE.contains(&argument) => _ = arguments.next(),
            // Options, and argument files (`@FILE`).
            _ if argument.starts_with(['-', '@']) || argument.is_empty() => {}
            main => return Some((index, main)),
        }
    }
    None
}

/// Returns a JVM's main class, jar or module; its command name if the arguments do not contain one.
pub fn main_of(process: &Process) -> String {
    let arguments = process.arguments().unwrap_or_default();
    let main = main_in(arguments.iter().skip(1).map(String::as_str));
    clean::name(main.map_or(&process.comm, |(_, main)| main)).into_owned()
}

/// Returns the libjvm.so that `program` will load, or `None` if it is not the launcher of a JDK. Finds
/// `program` as a shell would.
pub(crate) fn library(program: &OsStr) -> Option<PathBuf> {
    let found = if program.as_encoded_bytes().contains(&b'/') {
        PathBuf::from(program)
    } else {
        let is_file = |path: &PathBuf| path.is_file();
        env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(program)).find(is_file)?
    };
    let launcher = found.canonicalize().ok()?;
    let folder = launcher.parent()?;
    let library = LIBRARIES.iter().map(|path| folder.join(path)).find(|path| path.is_file())?;
    library.canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use super::*;

    #[test]
    fn arguments_yield_the_main_class_or_jar() {
        for (arguments, main) in [
            (
                &["-Xmx1g", "-cp", "a:b", "com.example.Main", "-x"][..],
                Some((3, "com.example.Main")),
            ),
            (&["-Dx=y", "-jar", "/srv/shop.jar", "serve"], Some((2, "/srv/shop.jar"))),
            (&["@options", "-m", "app/app.Main"], Some((2, "app/app.Main"))),
            (&["--add-opens", "java.base/java.lang=ALL-UNNAMED", "Main"], Some((2, "Main"))),
            (&["-version"], None),
            (&[], None),
        ] {
            assert_eq!(main_in(arguments.iter().copied()), main, "{arguments:?}");
        }
    }

    #[test]
    fn libjvm_is_found_relative_to_the_launcher() {
        let dir = env::temp_dir().join(format!("launcher-{}", std::process::id()));
        fs::create_dir_all(dir.join("jdk/bin")).unwrap();
        fs::create_dir_all(dir.join("jdk/lib/server")).unwrap();
        let java = dir.join("jdk/bin/java");
        fs::write(&java, "").unwrap();
        assert_eq!(library(java.as_os_str()), None);
        let expected = dir.join("jdk/lib/server/libjvm.so");
        fs::write(&expected, "").unwrap();
        symlink(&java, dir.join("link")).unwrap();
        let expected = expected.canonicalize().ok();
        assert_eq!(library(java.as_os_str()), expected);
        assert_eq!(library(dir.join("link").as_os_str()), expected);
        assert_eq!(library(OsStr::new("no-such-program")), None);
        assert_eq!(library(Path::new("/").as_os_str()), None);
        fs::remove_dir_all(dir).unwrap();
    }
}
