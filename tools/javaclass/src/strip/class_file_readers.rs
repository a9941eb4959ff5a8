//! Libraries that read class files as data. Classes that are only read in this way are not loaded, so
//! no report has them.

use std::collections::{BTreeSet, HashSet};

/// Ends of the names of classes that read class files. Many programs contain a copy of such a class in
/// another package, so most of these names lack the beginning of the package.
const READERS: [&str; 12] = [
    // ASM.
    "asm.ClassReader",
    "bcel.classfile.ClassParser",
    "com.sun.tools.javac.jvm.ClassReader",
    "dotty.tools.dotc.core.classfile.ClassfileParser",
    "io.github.classgraph.Classfile",
    "javassist.bytecode.ClassFile",
    "net.bytebuddy.pool.TypePool$Default",
    "org.codehaus.groovy.ast.decompiled.AsmDecompiler",
    "org.eclipse.jdt.internal.compiler.classfmt.ClassFileReader",
    "org.jboss.jandex.Indexer",
    "org.jetbrains.kotlin.load.kotlin.VirtualFileKotlinClass",
    "scala.tools.nsc.symtab.classfile.ClassfileParser",
];

/// Returns those classes in the reports (`seen`) that read class files. The JDK's internal classes are
/// excluded, because they do not read the program's files.
pub fn readers(seen: &HashSet<String>) -> BTreeSet<&str> {
    let reads = |class: &&str| {
        let is_one = |reader: &&str| {
            class
                .strip_suffix(reader)
                .is_some_and(|package| package.is_empty() || package.ends_with('.'))
        };
        !class.starts_with("jdk.internal.") && READERS.iter().any(is_one)
    };
    seen.iter().map(String::as_str).filter(reads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relocated_class_file_readers_are_recognized() {
        let seen = [
            "org.springframework.asm.ClassReader",
            "org.objectweb.asm.ClassReader",
            "jdk.internal.org.objectweb.asm.ClassReader",
            "shop.Plasm.ClassReader",
            "shop.plasm.ClassReader",
            "scala.tools.nsc.symtab.classfile.ClassfileParser",
        ];
        let seen = seen.map(str::to_owned).into();
        let expected = [
            "org.objectweb.asm.ClassReader",
            "org.springframework.asm.ClassReader",
            "scala.tools.nsc.symtab.classfile.ClassfileParser",
        ];
        assert_eq!(readers(&seen), expected.into());
    }
}
