//! Text in XML files, of which neither VOC's nor Label Studio's can hold every character.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The text with U+FFFD for each character that no XML file can hold, not even escaped.
pub(crate) fn allowed(text: &str) -> Cow<'_, str> {
    let impossible =
        |c: char| matches!(c, '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\u{fffe}' | '\u{ffff}');
    match text.contains(impossible) {
        true => text.replace(impossible, "\u{fffd}").into(),
        false => text.into(),
    }
}

/// As the text of an element or the value of an attribute. Bare line breaks would be read as spaces.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for char in allowed(text).chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\t' | '\n' | '\r' => write!(escaped, "&#{};", u32::from(char)).expect("a string takes it"),
            _ => escaped.push(char),
        }
    }
    escaped
}
