//! Whole objects, the outermost and embedded ones: `apiVersion`, `kind` and `metadata` are there with or without a schema.

use std::sync::LazyLock;

use super::{Pair, Work, child};
use crate::crd_diff::{
    kind::Kind,
    schema::{Count, Schema, Types},
    sink::{Sink, Step},
};

/// Fields that every object has, whatever its schema says.
pub const ALWAYS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// What is known of `metadata` that no schema speaks of, or of what is in it.
static ANY_OBJECT: LazyLock<Schema> = LazyLock::new(|| {
    let mut schema = Schema::open();
    schema.types = Types::OBJECT;
    schema
});
/// And of `apiVersion` and `kind` of an embedded object.
static ANY_WORD: LazyLock<Schema> = LazyLock::new(|| {
    let mut schema = Schema::empty();
    schema.types = Types::STRING;
    schema.limits.length.min = 1;
    schema
});
/// What is known of a name without a schema.
static ANY_NAME: LazyLock<Schema> = LazyLock::new(|| {
    let mut schema = Schema::empty();
    schema.types = Types::STRING;
    schema.limits.length = Count {
        min: 1,
        max: Some(253),
    };
    schema
});
static ANY_TEXT: LazyLock<Schema> = LazyLock::new(|| {
    let mut schema = Schema::empty();
    schema.types = Types::STRING;
    schema
});

/// `metadata` of a whole object is there with or without a schema, and never pruned. A schema may limit two names in it.
pub fn metadata<'a>(sink: &mut Sink<'a>, (old, new): Pair<'a>, work: &mut Work) {
    sink.enter(Step::Field("metadata"));
    for name in ["generateName", "name"] {
        let of = |schema: Option<&'a Schema>| schema.and_then(|schema| schema.properties.get(name));
        let (before, after) = (of(old), of(new));
        if before.is_some() || after.is_some() {
            let before = before.unwrap_or(&ANY_NAME);
            child(
                sink,
                Step::Field(name),
                before,
                after.unwrap_or(&ANY_TEXT),
                false,
                work,
            );
        }
    }
    sink.leave();
}

/// What the mark says, and what it kept that is kept no more.
pub fn embedded<'a>(sink: &mut Sink<'a>, old: &'a Schema, new: &'a Schema, work: &mut Work) {
    if new.embedded && !old.embedded {
        sink.add(Kind::EmbeddedAdded, "any object", "a whole Kubernetes object");
    }
    if !old.embedded {
        return;
    }
    if !new.embedded && !ALWAYS.iter().all(|name| new.keeps(name)) {
        sink.add(Kind::EmbeddedRemoved, "a whole Kubernetes object", "named fields");
    }
    for name in ALWAYS {
        let named = new.properties.get(name);
        let (before, named) = match name {
            // What is in it was kept, whatever its schema says.
            "metadata" if !new.embedded => (&*ANY_OBJECT, named.filter(|field| !field.unstructured)),
            "apiVersion" | "kind" if !old.properties.contains_key(name) => (&*ANY_WORD, named),
            _ => continue,
        };
        if let Some(after) = named.or(new.additional.as_deref()) {
            child(sink, Step::Field(name), before, after, new.misses(name), work);
        }
    }
}
