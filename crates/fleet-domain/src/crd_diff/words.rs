//! Schemas in words, short enough for a line of a report.

use std::fmt::{self, Display, Write as _};

use super::schema::{Schema, Types};

pub fn default_text(schema: &Schema) -> impl Display {
    fmt::from_fn(move |f| match &schema.default {
        Some(value) => write!(f, "default {value}"),
        None => f.write_str("no default"),
    })
}

/// A schema in a few words.
pub fn shape(schema: &Schema) -> impl Display {
    fmt::from_fn(move |f| {
        if schema.types.and(Types::OBJECT) == schema.types && !schema.properties.is_empty() {
            write!(f, "object with {}", shorten_fields(schema))?;
        } else {
            write!(f, "{}", schema.types)?;
        }
        if let Some(values) = &schema.limits.enumeration {
            write!(f, ", one of {}", values.in_words())?;
        }
        match &schema.default {
            Some(default) => write!(f, ", default {default}"),
            None => Ok(()),
        }
    })
}

pub fn shorten_fields(schema: &Schema) -> String {
    let names: Vec<&str> = schema.properties.keys().map(String::as_str).collect();
    if names.is_empty() {
        return "no named fields".to_owned();
    }
    shorten(&names)
}

pub fn shorten(names: &[&str]) -> String {
    let mut text = names.iter().take(6).copied().collect::<Vec<_>>().join(", ");
    if names.len() > 6 {
        let _ = write!(text, " and {} more", names.len() - 6);
    }
    text
}
