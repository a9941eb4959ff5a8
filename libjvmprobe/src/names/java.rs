//! Java names in class file format.

/// Converts the parameters of a method descriptor (JVMS 4.3.3) to Java syntax:
/// `(ILjava/lang/String;[J)V` becomes `(int, java.lang.String, long[])`.
pub(crate) fn java_parameters(descriptor: &str) -> Option<String> {
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
