//! Labels beside stacks: the class of an exception, the method being compiled, the reason of a deoptimization.

use std::{collections::HashMap, sync::Arc};

use super::java::JavaEvent;
use crate::{
    hotspot::{classes::java_name, deopt::Traps},
    stack::{Frame, Kind},
    trace::samples::session::{LABEL_FAILED, LABEL_IS_TEXT},
};

/// `LABEL_OTHER` of bpf/javaprof.h: the label of all texts beyond the capacity of the kernel side's map.
const OTHER: u64 = LABEL_IS_TEXT | 1;

/// Texts of the labels of one JVM.
#[derive(Clone, Debug, Default)]
pub(crate) struct Labels {
    texts: HashMap<u64, Arc<str>>,
    /// Encoding of deoptimization requests.
    pub(crate) traps: Option<Arc<Traps>>,
}

impl Labels {
    /// Adds the text of a label. The number of texts is bounded, because the kernel side's map of labels
    /// limits how many texts it sends for all JVMs together.
    pub(crate) fn take(&mut self, label: u64, text: &[u8]) {
        self.texts.insert(label, name(text).into());
    }

    /// Returns the frames of a label, outermost first.
    pub(crate) fn frames(&self, event: JavaEvent, label: u64) -> Vec<Frame> {
        let class = |name: &str| Frame::new(Kind::Class, name);
        let is_failed = event == JavaEvent::Compiles && label & LABEL_FAILED != 0;
        let label = if is_failed { label & !LABEL_FAILED } else { label };
        if label == OTHER {
            return vec![class("[others]")];
        }
        let Some(text) = self.texts.get(&label) else {
            return vec![match (event, &self.traps, u32::try_from(label.saturating_sub(1))) {
                (JavaEvent::Deopt, Some(traps), Ok(request)) => {
                    let (reason, action) = traps.explain(request as i32);
                    class(&format!("{reason} ({action})"))
                }
                _ => Frame::new(Kind::Unknown, "[unknown]"),
            }];
        };
        match event {
            JavaEvent::Compiles => match compilation(text) {
                Some((method, compiler)) => {
                    let mark = if is_failed { " (failed)" } else { "" };
                    vec![class(&(compiler + mark)), class(method)]
                }
                None => vec![class(text)],
            },
            _ => vec![class(text)],
        }
    }
}

/// Splits `Class.method COMPILER TIER%` into the method and a text about the compiler. The tier is 0 if it is
/// unknown. The last character is `%` if the method was entered in a loop (OSR), and a blank otherwise.
fn compilation(text: &str) -> Option<(&str, String)> {
    let is_osr = text.ends_with('%');
    let mut words = text.trim_end_matches(['%', ' ']).rsplitn(3, ' ');
    let (tier, compiler, method) = (words.next()?, words.next()?, words.next()?);
    let tier = if tier == "0" { String::new() } else { format!(" tier {tier}") };
    Some((method, format!("{compiler}{tier}{}", if is_osr { " (OSR)" } else { "" })))
}

/// Converts the name of a class, or a text that begins with one, to the form of Java source. A truncated text is not
/// marked as such, because its original length is not sent.
fn name(text: &[u8]) -> String {
    java_name(text, u32::try_from(text.len()).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_become_frames() {
        let mut labels = Labels::default();
        labels.take(LABEL_IS_TEXT | 6, b"java/lang/IllegalStateException");
        labels.take(LABEL_IS_TEXT | 8, b"java/lang/String.hashCode C2 4 ");
        labels.take(LABEL_IS_TEXT | 10, b"a/B.c C1 3%");
        labels.take(LABEL_IS_TEXT | 12, b"a/B.c C1 0 ");
        let frames = |event, label| -> Vec<_> {
            labels.frames(event, label).iter().map(|frame| frame.name.to_string()).collect()
        };
        let text = |label| LABEL_IS_TEXT | label;
        assert_eq!(frames(JavaEvent::Exceptions, text(6)), ["java.lang.IllegalStateException"]);
        let compiled = |label| frames(JavaEvent::Compiles, text(label));
        assert_eq!(compiled(8), ["C2 tier 4", "java.lang.String.hashCode"]);
        assert_eq!(
            (compiled(10), compiled(12)),
            (vec!["C1 tier 3 (OSR)".into(), "a.B.c".into()], vec!["C1".into(), "a.B.c".into()])
        );
        let failed = compiled(8 | LABEL_FAILED);
        assert_eq!(failed, ["C2 tier 4 (failed)", "java.lang.String.hashCode"]);
        assert_eq!(compiled(1 | LABEL_FAILED), ["[others]"]);
        assert_eq!(frames(JavaEvent::Exceptions, text(1)), ["[others]"]);
        assert_eq!(frames(JavaEvent::Exceptions, text(14)), ["[unknown]"]);
        assert_eq!(frames(JavaEvent::Deopt, 5), ["[unknown]"]);
    }

    #[test]
    fn addresses_of_hidden_classes_are_removed() {
        assert_eq!(name(b"a/B$$Lambda+0x00007f0123456789.run"), "a.B$$Lambda.run");
        assert_eq!(name(b"a/B$$Lambda/0x0000abcd"), "a.B$$Lambda");
        assert_eq!(name(b"a/B"), "a.B");
    }
}
