//! The documents of a chart's file.

use serde_json::Value;

use super::archive::File;
use crate::infrastructure::yaml;

const MAX_TEXT: usize = 32 << 20;

/// Why there are none.
#[derive(Debug, PartialEq, Eq)]
pub enum Unread {
    /// It may hold definitions, and only Helm can tell.
    Template,
    Broken(String),
}

pub fn read(file: &File) -> Result<Vec<Value>, Unread> {
    // Most files of a chart have none; they are not even parsed.
    if !file.text.contains("CustomResourceDefinition") {
        return Ok(Vec::new());
    }
    if file.template && file.text.contains("{{") {
        return Err(Unread::Template);
    }
    parse(&file.text).map_err(|error| Unread::Broken(error.to_string()))
}

/// Documents, with lists opened.
pub fn parse(text: &str) -> Result<Vec<Value>, yaml::TextError> {
    let documents = yaml::documents(text, MAX_TEXT)?;
    Ok(documents.into_iter().flat_map(opened).collect())
}

fn opened(mut document: Value) -> Vec<Value> {
    let is_list = document["kind"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("List"));
    match document.get_mut("items") {
        Some(Value::Array(items)) if is_list => std::mem::take(items),
        _ => vec![document],
    }
}
