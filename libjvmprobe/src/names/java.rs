//! Java names in class file format.

use crate::names::clean::{self, CUT, MAX_PARAMETERS};

/// Converts the parameters of a method descriptor (JVMS 4.3.3) to Java syntax:
/// `(ILjava/lang/String;[J)V` becomes `(int, java.lang.String, long[])`. The result has at most [`MAX_PARAMETERS`] bytes.
/// The descriptor may have been cut, too; then the result ends in `…)`.
pub(crate) fn java_parameters(descriptor: &str) -> Option<String> {
    let parameters = match descriptor.strip_suffix(CUT).filter(|rest| !rest.contains(')')) {
        Some(rest) => {
            // The last parameter is incomplete.
            let whole = rest.rfind(';').and_then(|end| rest.get(..=end));
            let whole = whole.and_then(|whole| parameters(&format!("{whole})")));
            let shown = whole.as_deref().and_then(|whole| whole.strip_suffix(')'));
            shown.map_or_else(|| format!("({CUT})"), |shown| format!("{shown}, {CUT})"))
        }
        None => parameters(descriptor)?,
    };
    Some(clean::cut(&parameters, MAX_PARAMETERS).into_owned())
}

fn parameters(descriptor: &str) -> Option<String> {
    let (mut rest, _) = descriptor.strip_prefix('(')?.split_once(')')?;
    let mut types = Vec::new();
    while !rest.is_empty() {
        let base = rest.trim_start_matches('[');
        let dimensions = rest.len() - base.len();
        let (name, tail) = if let Some(class) = base.strip_prefix('L') {
            let (class, tail) = class.split_once(';')?;
            (class.replace('/', "."), tail)
        } else {
            let primitive = match base.chars().next()? {
                'Z' => "boolean",
                'B' => "byte",
                'C' => "char",
                'S' => "short",
                'I' => "int",
                'J' => "long",
                'F' => "float",
                'D' => "double",
                _ => return None,
            };
            (primitive.to_owned(), &base[1..])
        };
        types.push(name + &"[]".repeat(dimensions));
        rest = tail;
    }
    Some(format!("({})", types.join(", ")))
}

/// Converts a class name in Java syntax to the form of class files: `java.lang.String[]` becomes
/// `[Ljava/lang/String;`, and `java.lang.String` becomes `java/lang/String`.
pub(crate) fn internal_name(class: &str) -> String {
    if class.ends_with("[]") { field_descriptor(class) } else { class.replace('.', "/") }
}

/// Converts parameters in Java syntax to the descriptor of a method without a result (JVMS 4.3.3):
/// `int, java.lang.String` becomes `(ILjava/lang/String;)V`.
pub(crate) fn descriptor(parameters: &str) -> String {
    let types = parameters.split(", ").filter(|name| !name.is_empty());
    format!("({})V", types.map(field_descriptor).collect::<String>())
}

/// Converts a type in Java syntax to a field descriptor (JVMS 4.3.2).
fn field_descriptor(name: &str) -> String {
    let base = name.trim_end_matches("[]");
    let dimensions = (name.len() - base.len()) / 2;
    let base = match base {
        "boolean" => "Z".to_owned(),
        "byte" => "B".to_owned(),
        "char" => "C".to_owned(),
        "short" => "S".to_owned(),
        "int" => "I".to_owned(),
        "long" => "J".to_owned(),
        "float" => "F".to_owned(),
        "double" => "D".to_owned(),
        class => format!("L{};", class.replace('.', "/")),
    };
    "[".repeat(dimensions) + &base
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_java_syntax_become_class_file_names() {
        let names = ["byte[]", "a.B", "a.B[][]", "int"].map(internal_name);
        assert_eq!(names, ["[B", "a/B", "[[La/B;", "int"]);
        let parameters = "(I[Ljava/lang/String;J[[D)V";
        let java = java_parameters(parameters).unwrap();
        assert_eq!(descriptor(java.trim_matches(['(', ')'])), parameters);
        assert_eq!(descriptor(""), "()V");
    }

    #[test]
    fn long_parameters_are_cut() {
        for (cut, shown) in
            [("(ILa/B;Lc/D…", "(int, a.B, …)"), ("(Lc/D…", "(…)"), ("(I)Lc/D…", "(int)")]
        {
            assert_eq!(java_parameters(cut).unwrap(), shown);
        }
        let long = java_parameters(&format!("({})V", "Z".repeat(10_000))).unwrap();
        assert!(long.len() <= MAX_PARAMETERS && long.ends_with(CUT));
    }
}
