//! Schemas in words, short enough for a line of a report.

use std::fmt::{self, Display, Write as _};

use super::{
    print,
    schema::{Schema, Types},
};

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

/// A few by name, the others by number and a hash, so that two of them are not taken for one.
pub fn shorten(names: &[&str]) -> String {
    let (named, others) = names.split_at(names.len().min(6));
    let mut text = named.join(", ");
    if !others.is_empty() {
        let print = print::of_all(others.iter().map(|name| print::of_text(name)));
        let _ = write!(text, " and {} more (#{:06x})", others.len(), print >> 40);
    }
    text
}
