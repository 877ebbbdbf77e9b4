//! `persistentVolumeClaim` of a Model, which circulates as a string and as an object.

use serde_json::Value;

/// A claim that exists already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Name of the PersistentVolumeClaim.
    pub name: String,
    /// Whether it is mounted for reading only.
    pub read_only: bool,
}

/// Why a `persistentVolumeClaim` cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimError {
    /// Neither a string nor an object.
    WrongType,
    /// An object without a usable `claimName`.
    NoName,
    /// A name that no object can have.
    BadName(String),
    /// `readOnly` is not a boolean.
    BadReadOnly,
}

impl std::fmt::Display for ClaimError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::WrongType => f.write_str(
                "must be the name of a PersistentVolumeClaim, or an object with claimName and readOnly",
            ),
            Self::NoName => f.write_str("has no claimName: name the PersistentVolumeClaim to use"),
            Self::BadName(name) => write!(f, "{name:?} cannot be the name of a PersistentVolumeClaim"),
            Self::BadReadOnly => f.write_str("readOnly must be true or false"),
        }
    }
}

impl std::error::Error for ClaimError {}

impl Claim {
    /// Understands either form. An absent, null or empty value is no claim.
    pub fn parse(value: Option<&Value>) -> Result<Option<Self>, ClaimError> {
        let (name, read_only) = match value {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(name)) if name.is_empty() => return Ok(None),
            Some(Value::String(name)) => (name, false),
            Some(Value::Object(map)) if map.is_empty() => return Ok(None),
            Some(Value::Object(map)) => {
                let name = map
                    .get("claimName")
                    .and_then(Value::as_str)
                    .filter(|name| !name.is_empty());
                let read_only = match map.get("readOnly") {
                    None | Some(Value::Null) => false,
                    Some(value) => value.as_bool().ok_or(ClaimError::BadReadOnly)?,
                };
                let Some(Value::String(name)) = name.and(map.get("claimName")) else {
                    return Err(ClaimError::NoName);
                };
                (name, read_only)
            }
            Some(_) => return Err(ClaimError::WrongType),
        };
        if !crate::patterns::name(name) {
            return Err(ClaimError::BadName(name.clone()));
        }
        Ok(Some(Self {
            name: name.clone(),
            read_only,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::absent(Value::Null, Ok(None))]
    #[case::empty_string(json!(""), Ok(None))]
    #[case::empty_object(json!({}), Ok(None))]
    #[case::string(json!("weights"), Ok(Some(("weights", false))))]
    #[case::object(json!({"claimName": "weights"}), Ok(Some(("weights", false))))]
    #[case::read_only(json!({"claimName": "weights", "readOnly": true}), Ok(Some(("weights", true))))]
    #[case::no_name(json!({"readOnly": true}), Err(ClaimError::NoName))]
    #[case::empty_name(json!({"claimName": ""}), Err(ClaimError::NoName))]
    #[case::number(json!(7), Err(ClaimError::WrongType))]
    #[case::list(json!(["weights"]), Err(ClaimError::WrongType))]
    #[case::bad_flag(json!({"claimName": "weights", "readOnly": "yes"}), Err(ClaimError::BadReadOnly))]
    #[case::bad_name(json!("No Name"), Err(ClaimError::BadName("No Name".into())))]
    fn both_forms(#[case] value: Value, #[case] expected: Result<Option<(&str, bool)>, ClaimError>) {
        let expected = expected.map(|claim| {
            claim.map(|(name, read_only)| Claim {
                name: name.to_owned(),
                read_only,
            })
        });
        assert_eq!(Claim::parse(Some(&value)), expected);
    }
}
