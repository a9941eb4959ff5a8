//! Service name and attributes that a JVM's operator has set in its arguments and in a few environment variables. All
//! other arguments and variables are discarded, because they may contain secrets.
//!
//! Sources: OpenTelemetry, "Resource SDK" (`OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME`), "Resource
//! semantic conventions" (`service.name`), and its Java agent (`-Dotel.service.name`, names of jars);
//! Spring Boot, "Externalized configuration" (`spring.application.name`); the JVM's
//! `JAVA_TOOL_OPTIONS`, the launcher's `JDK_JAVA_OPTIONS`.

use std::collections::BTreeMap;

use crate::{names::clean, process::launcher};

/// Attributes, by name.
pub type Attributes = BTreeMap<String, String>;

/// Maximum number of attributes, as in OpenTelemetry's SDKs.
pub(crate) const MAX_ATTRIBUTES: usize = 128;
/// Maximum length of an attribute's name or value in bytes.
const MAX_LENGTH: usize = 1024;

/// Programs in the folder bin of JDK 8 to 25, except java. The arguments of these programs contain no main
/// class.
const JDK_TOOLS: [&str; 30] = [
    "jar",
    "jarsigner",
    "javac",
    "javadoc",
    "javah",
    "javap",
    "jcmd",
    "jconsole",
    "jdb",
    "jdeprscan",
    "jdeps",
    "jfr",
    "jhsdb",
    "jimage",
    "jinfo",
    "jlink",
    "jmap",
    "jmod",
    "jpackage",
    "jps",
    "jrunscript",
    "jshell",
    "jstack",
    "jstat",
    "jstatd",
    "jwebserver",
    "keytool",
    "rmic",
    "rmiregistry",
    "serialver",
];

/// Service data from a JVM's command line and environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// `service.name`.
    pub name: String,
    /// Whether an argument or a variable sets the name. If not, the name is that of the jar or main class.
    pub is_name_set: bool,
    /// Main class, jar or module; empty if the arguments do not contain one.
    pub main: String,
    /// Attributes from OpenTelemetry's variables and properties, without `service.name`.
    pub attributes: Attributes,
}

/// Environment variables that are read, in the order in which [`Service::of`] unpacks them.
const VARIABLES: [&str; 5] = [
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
    "SPRING_APPLICATION_NAME",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
];

impl Service {
    /// Determines the service of a JVM from its arguments, of which the first is the program's name, and from
    /// its environment in the format of /proc/PID/environ.
    ///
    /// The name is the first of these values that is set:
    /// 1. the system property `otel.service.name`, then the environment variable `OTEL_SERVICE_NAME`
    /// 2. `service.name` in the system property `otel.resource.attributes`, then in the environment variable
    ///    `OTEL_RESOURCE_ATTRIBUTES`
    /// 3. `spring.application.name` as a program argument, then as a system property, then the environment
    ///    variable `SPRING_APPLICATION_NAME`
    /// 4. the name of the jar without folder and extension, or the main class or module
    /// 5. `unknown_service:java`
    ///
    /// System properties override environment variables, as in OpenTelemetry's Java agent.
    pub fn of(arguments: &[String], environment: &[u8]) -> Self {
        let [service, resource, spring, tool, jdk] =
            VARIABLES.map(|name| variable(environment, name).unwrap_or_default());
        let after_program = arguments.get(1..).unwrap_or_default();
        let program = arguments.first().map_or("", |path| path.rsplit('/').next().unwrap_or(path));
        let (main_index, main) = match JDK_TOOLS.contains(&program) {
            true => (usize::MAX, program),
            false => launcher::main_in(after_program.iter().map(String::as_str))
                .unwrap_or((usize::MAX, "")),
        };
        // If a property is defined several times, the last definition counts. The JVM parses the variables
        // before the command line.
        let (tool, jdk) = (words(&tool), words(&jdk));
        let ours = after_program.iter().map(String::as_str).take(main_index);
        let options: Vec<_> = tool
            .iter()
            .map(String::as_str)
            .chain(jdk.iter().map(String::as_str))
            .chain(ours)
            .collect();
        let property = |name: &str| {
            let mut values = options.iter().rev().filter_map(|option| {
                option.strip_prefix("-D")?.strip_prefix(name)?.strip_prefix('=')
            });
            values.next().filter(|value| !value.trim().is_empty())
        };
        // A list with any invalid member is ignored completely.
        let mut attributes = resource_attributes(&resource).unwrap_or_default();
        attributes.extend(
            property("otel.resource.attributes").and_then(resource_attributes).unwrap_or_default(),
        );
        let of_resource = attributes.remove("service.name");
        let spring_argument = after_program
            .iter()
            .rev()
            .find_map(|argument| argument.strip_prefix("--spring.application.name="));
        let settings = [
            property("otel.service.name"),
            Some(&*service),
            of_resource.as_deref(),
            spring_argument,
            property("spring.application.name"),
            Some(&*spring),
        ];
        let is_name = |name: &&str| !name.trim().is_empty();
        let set = settings.into_iter().flatten().find(is_name);
        let others = [short(main), "unknown_service:java"];
        let name = set.or_else(|| others.into_iter().find(is_name)).unwrap_or_default();
        let (is_name_set, main) = (set.is_some(), bounded(main));
        Self { name: bounded(name), is_name_set, main, attributes }
    }
}

/// Returns a jar's name without folder and extension; anything else unchanged.
fn short(main: &str) -> &str {
    match main.strip_suffix(".jar") {
        Some(path) => path.rsplit('/').next().unwrap_or(path),
        None => main,
    }
}

/// Returns a variable's value. If it is set several times, the first one counts, as for getenv(3).
fn variable(environment: &[u8], name: &str) -> Option<String> {
    let value = |entry: &[u8]| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(String::from_utf8_lossy(value).into_owned())
    };
    environment.split(|&byte| byte == 0).find_map(value)
}

/// Splits the value of an options variable into words at white space outside of quotes.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in text.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if matches!(c, '"' | '\'') => quote = Some(c),
            None if c.is_whitespace() => words.push(std::mem::take(&mut word)),
            _ => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// Parses `key=value,key=value`, where keys and values may be percent-encoded. Returns `None` if any part is
/// invalid; then the complete list is ignored.
pub(crate) fn resource_attributes(text: &str) -> Option<Attributes> {
    let mut attributes = Attributes::new();
    for member in text.split(',').filter(|member| !member.trim().is_empty()).take(MAX_ATTRIBUTES) {
        let (key, value) = member.split_once('=')?;
        let key = decoded(key.trim())?;
        if key.is_empty() {
            return None;
        }
        attributes.insert(bounded(&key), bounded(&decoded(value.trim())?));
    }
    Some(attributes)
}

/// Decodes a percent-encoded text; `None` if the encoding is invalid or the result is not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Trims a text, limits it to [`MAX_LENGTH`] bytes and replaces harmful characters.
pub(crate) fn bounded(text: &str) -> String {
    let text = text.trim();
    let end = (0..=MAX_LENGTH.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    clean::name(&text[..end.unwrap_or(0)]).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(arguments: &[&str], environment: &str) -> Service {
        let arguments: Vec<_> = ["java"].iter().chain(arguments).map(|a| (*a).to_owned()).collect();
        Service::of(&arguments, environment.replace('|', "\0").as_bytes())
    }

    #[test]
    fn service_name_follows_the_source_precedence() {
        for (arguments, environment, name) in [
            (&["-jar", "/srv/shop.jar"][..], "", "shop"),
            (
                &["-cp", "x", "com.example.Main", "-Dspring.application.name=no"],
                "",
                "com.example.Main",
            ),
            (&["-m", "app/app.Main"], "", "app/app.Main"),
            // The value of -cp equals the name of the jar.
            (&["-cp", "app.jar", "-Dotel.service.name=shop", "-jar", "app.jar"], "", "shop"),
            (&["-version"], "", "unknown_service:java"),
            (&["-Dspring.application.name=shop", "Main"], "", "shop"),
            (&["-Dspring.application.name=a", "-Dspring.application.name=b", "Main"], "", "b"),
            (&["Main"], "SPRING_APPLICATION_NAME=shop", "shop"),
            (
                &["-Dspring.application.name=b", "Main", "--spring.application.name=a"],
                "SPRING_APPLICATION_NAME=c",
                "a",
            ),
            (&["-Dspring.application.name=b", "Main"], "A=b|OTEL_SERVICE_NAME=otel|C=d", "otel"),
            (&["-Dspring.application.name=b", "Main"], "OTEL_SERVICE_NAME=", "b"),
            (&["Main"], "OTEL_RESOURCE_ATTRIBUTES=service.name=shop%20a", "shop a"),
            (&["Main"], "OTEL_RESOURCE_ATTRIBUTES=service.name=a|OTEL_SERVICE_NAME=b", "b"),
            (&["-Dotel.service.name=a", "Main"], "OTEL_SERVICE_NAME=b", "a"),
            (&["Main"], "JAVA_TOOL_OPTIONS=-Xmx1g  '-Dspring.application.name=my shop'", "my shop"),
            (
                &["-Dspring.application.name=b", "Main"],
                "JAVA_TOOL_OPTIONS=-Dspring.application.name=a",
                "b",
            ),
            // Other variables, whose names merely contain `OTEL_SERVICE_NAME`, are ignored.
            (&["Main"], "XOTEL_SERVICE_NAME=a|OTEL_SERVICE_NAMES=b", "Main"),
            (&["Main"], "OTEL_SERVICE_NAME=a\nb\u{202e}", "a\\x0ab\\u{202e}"),
        ] {
            assert_eq!(of(arguments, environment).name, name, "{arguments:?} {environment}");
        }
    }

    #[test]
    fn jdk_tools_are_named_after_their_program() {
        for (arguments, name) in [
            (&["/opt/jdk/bin/javac", "-d", "/tmp/build-4711", "A.java"][..], "javac"),
            (&["jar", "cf", "x.jar"], "jar"),
            (&["/opt/jdk/bin/javac", "-J-Dotel.service.name=x", "A.java"], "javac"),
            (&["jsvc.exec", "-cp", "x", "Main"], "Main"),
            (&["/opt/jdk/bin/java", "-cp", "x", "javac"], "javac"),
        ] {
            let arguments: Vec<_> = arguments.iter().map(|&a| a.to_owned()).collect();
            let service = Service::of(&arguments, b"");
            assert_eq!((&*service.name, &*service.main), (name, name), "{arguments:?}");
        }
        let arguments = ["javac".to_owned()];
        assert_eq!(Service::of(&arguments, b"OTEL_SERVICE_NAME=build").name, "build");
    }

    #[test]
    fn invalid_resource_attributes_are_ignored() {
        let of = |text: &str| {
            let attributes = of(&["Main"], &format!("OTEL_RESOURCE_ATTRIBUTES={text}")).attributes;
            attributes
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            of("service.namespace=prod, a.b = c ,service.version=1"),
            "a.b=c service.namespace=prod service.version=1"
        );
        assert_eq!(of("a=b%2Cc%3Dd,e=%C3%A4,"), "a=b,c=d e=ä");
        assert_eq!(of("a=b=c"), "a=b=c");
        for wrong in ["a=%2", "a=%zz,b=c", "a", "b=c,a", "=b", "a=%ff"] {
            assert_eq!(of(wrong), "", "{wrong}");
        }
        let many: Vec<_> = (0..1000).map(|n| format!("k{n}={}", "v".repeat(5000))).collect();
        let all = resource_attributes(&many.join(",")).unwrap();
        assert_eq!(all.len(), MAX_ATTRIBUTES);
        assert!(all.values().all(|value| value.len() == MAX_LENGTH));
    }

    #[test]
    fn attributes_of_property_and_environment_are_merged() {
        let both =
            of(&["-Dotel.resource.attributes=a=1,b=2", "Main"], "OTEL_RESOURCE_ATTRIBUTES=b=3,c=4");
        let all: Vec<_> = both.attributes.values().map(String::as_str).collect();
        assert_eq!(all, ["1", "2", "4"]);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_yield_a_nonempty_name(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            text in "(OTEL_RESOURCE_ATTRIBUTES=|%[0-9a-f]?|=|,|ä|'|\"| |\0|-D){0,30}",
        ) {
            let both = [text.as_bytes(), &bytes[..]].concat();
            let words: Vec<_> = text.split(' ').map(str::to_owned).collect();
            let service = Service::of(&words, &both);
            prop_assert!(!service.name.is_empty());
        }
    }
}
