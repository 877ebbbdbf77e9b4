//! The kinds of findings, and what each means: one table, so that the words can be read and judged side by side.

use serde::{Serialize, Serializer};

use super::finding::{Class, Impact};

/// What a kind of finding means, wherever it occurs.
#[derive(Debug)]
pub struct Meaning {
    pub id: &'static str,
    pub class: Class,
    pub impact: Impact,
    /// Whether validation ratcheting spares stored objects.
    pub ratchets: bool,
    pub why: &'static str,
    pub affects: &'static str,
    pub action: &'static str,
}

macro_rules! kinds {
    ($($kind:ident $id:literal $class:ident $impact:ident $ratchets:literal
        $why:literal $affects:literal $action:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind { $($kind),* }

        impl Kind {
            pub const ALL: &[Kind] = &[$(Kind::$kind),*];

            pub fn meaning(self) -> &'static Meaning {
                match self {
                    $(Self::$kind => &Meaning {
                        id: $id,
                        class: Class::$class,
                        impact: Impact::$impact,
                        ratchets: $ratchets,
                        why: $why,
                        affects: $affects,
                        action: $action,
                    }),*
                }
            }
        }
    };
}

kinds! {
    // The set of definitions, and what is not schema.
    CrdRemoved "crd-removed" DataLoss Breaking false
        "The definition is not in the new set. Where the old one is deleted, every object of this kind goes with it; where it stays, nobody looks after it."
        "everybody who has objects of this kind"
        "Keep the definition for as long as objects exist; move them to the new kind first if it was renamed."
    CrdLeftOut "crd-left-out" NoEffect Info false
        "The cluster has this definition of the same group and the new set does not name it. Applying the new set leaves it as it is."
        "nobody, unless it belongs to the same operator"
        "Check whether the operator still serves this kind."
    CrdAdded "crd-added" NoEffect Info false
        "A new kind."
        "nobody"
        "Nothing."
    ScopeChanged "scope-changed" DataLoss Breaking false
        "The scope of an installed definition cannot be changed: the API server refuses the update, and deleting the definition first deletes all objects."
        "everybody who has objects of this kind"
        "Publish the other scope as a new kind, and move the objects."
    KindChanged "kind-changed" DataLoss Breaking false
        "The kind of an installed definition cannot be changed: the API server refuses the update, and deleting the definition first deletes all objects."
        "everybody who has objects of this kind"
        "Keep the kind's name, or publish a new definition beside the old one."
    NamesChanged "names-changed" Clients Warning false
        "Clients that use the old name no longer find the kind."
        "people and scripts that use this name"
        "Keep the old name beside the new one where that is possible."
    PruningTurnedOn "pruning-turned-on" DataLoss Breaking false
        "`preserveUnknownFields` goes off: from now on every field that the schema does not name is dropped when an object is read or written."
        "owners of objects with fields outside the schema"
        "Check the stored objects with --objects, and name their fields in the schema first."
    VersionRemoved "version-removed" DataLoss Breaking false
        "Objects stored in this version could not be read any more, so the API server refuses a definition without it while `status.storedVersions` names it; clients and manifests that use it are refused."
        "everybody who uses this version, and every cluster that ever stored objects in it"
        "Rewrite all objects in the storage version, take the version out of status.storedVersions, then remove it; move manifests before that."
    VersionNeverStored "version-never-stored" NoEffect Info false
        "The version was not served, and the cluster has no objects stored in it."
        "nobody"
        "Nothing."
    VersionLoses "version-loses-fields" DataLoss Breaking false
        "A version is served beside the stored one, conversion only changes `apiVersion`, and this version does not know these fields of the stored one, or knows them as another type: whoever reads an object through it and writes it back loses them."
        "owners of objects that use these fields, and clients of this version"
        "Name the fields in this version as well, convert with a webhook, or do not serve it yet."
    VersionUnserved "version-unserved" Clients Breaking false
        "Requests for this version are answered with 404: manifests, controllers and GitOps tools that use it stop working, though no object is lost."
        "everybody who reads or writes this version"
        "Move manifests and clients to a served version first."
    VersionDeprecated "version-deprecated" Clients Warning false
        "Clients of this version get a warning; it is going to be removed."
        "everybody who uses this version"
        "Plan the move to a newer version."
    VersionAdded "version-added" NoEffect Info false
        "A new version."
        "nobody"
        "Nothing."
    StorageMoved "storage-moved" Clients Warning false
        "New writes are stored in another version. From the moment this definition is applied, `status.storedVersions` names it, and a definition without it is refused."
        "whoever rolls back, and whoever removes the old version later"
        "Migrate stored objects after the upgrade; keep the old version in the definition until then."
    StorageLoses "storage-loses-fields" DataLoss Breaking false
        "Objects are stored in another version, conversion only changes `apiVersion`, and the new storage version does not know these fields, or knows them as another type: they are pruned, or refused."
        "owners of objects that use these fields"
        "Name the fields in the new version as well, or convert with a webhook."
    StorageRejects "storage-rejects-objects" RejectsObjects Breaking false
        "Objects are stored in another version, conversion only changes `apiVersion`, and the new storage version refuses what the old one takes: an object that does not meet it is refused when it is written through that version, by the upgraded operator or by a migration."
        "owners of objects that do not meet the new version, and whoever migrates stored objects"
        "Let the new version take what is stored, fill in with defaults what it asks for, or convert with a webhook; check the stored objects with --objects."
    ConversionChanged "conversion-changed" Clients Warning false
        "Versions are converted differently. While a conversion webhook does not answer, no object of this kind can be read or written."
        "everybody who uses this kind, for as long as the webhook is not ready"
        "Have the webhook running, with its certificate, before the definition is applied."
    ConversionDropped "conversion-dropped" DataLoss Breaking false
        "Without the webhook only `apiVersion` is changed between versions whose schemas differ: what the other version does not know is pruned."
        "everybody who uses another version than the stored one"
        "Keep the webhook for as long as more than one version is there."
    StatusRemoved "status-subresource-removed" Clients Breaking false
        "Requests to `/status` are answered with 404, so controllers cannot report; `status` becomes an ordinary field that every writer may change."
        "the controller of this kind"
        "Keep the status subresource."
    StatusAdded "status-subresource-added" Clients Warning false
        "Writes to `status` through the object itself are silently ignored from now on; only `/status` changes it."
        "controllers that write status with the object"
        "Let controllers write status through the subresource."
    StatusRequired "status-required" Clients Breaking false
        "`status` is required, and only `/status` writes it: the server drops it from every new object before it validates, whether it was written or filled in. Stored objects keep theirs, but no new one can be made."
        "everybody who makes objects of this kind"
        "Do not require status."
    ScaleRemoved "scale-subresource-removed" Clients Breaking false
        "Requests to `/scale` are answered with 404: autoscalers and `kubectl scale` stop working."
        "autoscalers, and people who scale by hand"
        "Keep the scale subresource."
    ScaleChanged "scale-subresource-changed" Clients Warning false
        "Autoscalers read and write other fields than before."
        "autoscalers of this kind"
        "Check that the autoscalers' targets still mean the same."
    ColumnsChanged "printer-columns-changed" Clients Info false
        "`kubectl get` shows other columns."
        "people and scripts that read its output"
        "Nothing, unless a script reads columns by position."
    SelectableRemoved "selectable-field-removed" Clients Breaking false
        "Requests with a field selector on this field are refused."
        "controllers and people who select by it"
        "Keep the selectable field."

    // What the schema drops.
    FieldRemoved "field-removed" DataLoss Breaking false
        "The API server prunes fields that the schema does not name: the value disappears when the object is read, and is gone for good with the next write."
        "owners of objects that set it, and controllers that read it"
        "Keep the field, deprecated, until no object sets it; copy its value elsewhere first."
    UnknownPruned "unknown-fields-pruned" DataLoss Breaking false
        "Fields that were kept without being named are pruned from now on."
        "owners of objects with such fields"
        "Name the fields that are in use, or keep preserving the others."
    EmbeddedRemoved "embedded-resource-removed" DataLoss Breaking false
        "Without being an embedded resource, `apiVersion`, `kind` and `metadata` in here are pruned unless the schema names them."
        "owners of objects that embed another"
        "Keep the mark, or name the three fields."

    // What the schema refuses.
    FreeFieldTyped "free-field-typed" RejectsObjects Breaking true
        "Anything was kept here until now, because the parent preserves unknown fields. Values of another shape are refused from now on."
        "owners of objects that set it to something else"
        "Check the stored objects with --objects before the upgrade."
    EmbeddedAdded "embedded-resource-added" RejectsObjects Breaking false
        "The value has to be a whole Kubernetes object now, with `apiVersion`, `kind` and valid `metadata`."
        "owners of objects without them"
        "Check the stored objects with --objects before the upgrade."
    TypeChanged "type-changed" RejectsObjects Breaking true
        "Values of the old type are refused."
        "owners of objects that set it, and clients that write it"
        "Add a new field for the new type, and keep the old one until nobody sets it."
    ShapeChanged "shape-changed" DataLoss Breaking false
        "Values of the old type are emptied when they are read, because the schema names nothing that is in them, and what is left is refused. No server spares them: what it compares with is emptied as well."
        "owners of objects that set it, and clients that write it"
        "Add a new field for the new type, and keep the old one until nobody sets it."
    RequiredAdded "required-added" RejectsObjects Breaking true
        "Objects without this field are refused, and there is no default to fill it in."
        "owners of objects that leave it out"
        "Give it a default, or leave it optional and let the controller decide."
    RequiredDefaulted "required-with-default" NoEffect Info false
        "The field is required now, and has a default: the API server fills it in before it validates."
        "nobody"
        "Nothing."
    EnumNarrowed "enum-narrowed" RejectsObjects Breaking true
        "Values that were allowed are refused."
        "owners of objects that have one of these values"
        "Keep the values until no object has them."
    EnumAdded "enum-added" RejectsObjects Breaking true
        "Only listed values are taken from now on."
        "owners of objects that have another value"
        "Check the stored objects with --objects before the upgrade."
    EnumGrown "enum-grown" Clients Warning false
        "Clients meet values that they do not know."
        "controllers and clients that decide by this value"
        "Check that readers treat unknown values well; upgrade readers before writers."
    LimitTightened "limit-tightened" RejectsObjects Breaking true
        "Values that were allowed are outside the limit now, and refused."
        "owners of objects with such values"
        "Widen the limit, or check the stored objects with --objects before the upgrade."
    PatternAdded "pattern-added" RejectsObjects Breaking true
        "Text that does not match is refused."
        "owners of objects with such text"
        "Check the stored objects with --objects before the upgrade."
    PatternChanged "pattern-changed" RejectsObjects Breaking true
        "Some text that matched the old pattern does not match the new one, and is refused."
        "owners of objects with such text"
        "Let the new pattern take what the old one took, or check the stored objects with --objects."
    FormatAdded "format-tightened" RejectsObjects Breaking true
        "Values that do not have this format are refused."
        "owners of objects with such values"
        "Check the stored objects with --objects before the upgrade."
    NumberFormatAdded "number-format-tightened" Clients Breaking false
        "From 1.36 on, servers refuse numbers that do not fit this format. They let a stored one pass as long as it is left alone; older servers take all."
        "clients that write larger numbers"
        "Check what clients write before servers come to 1.36."
    NullRejected "null-rejected" RejectsObjects Breaking true
        "Null is refused here."
        "owners of objects with an explicit null"
        "Keep the field nullable."
    NullDropped "null-dropped" Clients Warning false
        "An explicit null is dropped, as if the field had been left out, or gives way to the default."
        "controllers that tell null from absent"
        "Check that readers treat an absent field as they treated null."
    NullKept "null-kept" Clients Warning false
        "An explicit null was dropped here, as if the field had been left out, and none is stored. It stays from now on, because the field is nullable, and what is said beside that refuses it, or counts it."
        "clients that write an explicit null"
        "Let the listed values and the combinations around take a null, or leave the field as it was."
    ListTightened "list-type-tightened" Clients Breaking false
        "Entries have to be unique now. New objects with equal entries are refused, and so are updates that bring them in. A stored list that has them already passes on every server, though server-side apply may fail on its object."
        "clients that write equal entries"
        "Check the stored objects with --objects, and what clients write, before the upgrade."
    RuleAdded "rule-added" RejectsObjects Breaking true
        "Objects that break the rule are refused."
        "owners of objects that break it"
        "Check the stored objects against the rule before the upgrade."
    RuleChanged "rule-changed" RejectsObjects Undecidable true
        "Objects that met the old rule may break the new one, and be refused."
        "owners of objects that break it"
        "Read both rules; waive the finding if the new one takes everything that the old one took."
    TransitionRuleAdded "transition-rule-added" Clients Breaking false
        "Stored objects are fine, but updates that break the rule are refused."
        "clients that change this value"
        "Make sure that nobody has to change it, or that there is a way around."
    ChoiceAdded "choice-added" RejectsObjects Breaking true
        "Values that do not meet the new combination are refused."
        "owners of objects that do not meet it"
        "Check the stored objects with --objects before the upgrade."
    ChoiceChanged "choice-changed" RejectsObjects Undecidable true
        "Values that met the old combination may not meet the new one, and be refused."
        "owners of objects that do not meet it"
        "Read both; check the stored objects with --objects; waive the finding if the new one takes everything that the old one took."

    TooMany "too-many-findings" RejectsObjects Breaking false
        "More was found than is written down. What is not named here may be worse than what is, and cannot be waived."
        "owners of objects, and clients"
        "Make the change in several steps, and compare each."

    // What surprises, and what does nothing.
    DefaultAdded "default-added" Clients Warning false
        "Objects that leave the field out get this value as soon as they are read."
        "owners of objects that leave it out"
        "Make sure that the value means what leaving it out meant."
    DefaultChanged "default-changed" Clients Warning false
        "Objects that leave the field out get another value; those stored with the old one keep it."
        "owners of objects that leave it out"
        "Set the old value where it is wanted."
    DefaultRemoved "default-removed" Clients Warning false
        "Objects that leave the field out have none; those stored with the old default keep it."
        "controllers that count on the value, owners of new objects"
        "Set the value in manifests, or treat an absent field as the old default."
    DefaultUnderChoice "default-under-choice" RejectsObjects Undecidable true
        "The API server fills this value in before it validates, and the object it belongs to is checked with oneOf, not, a limit on its fields or a rule: what is filled in may break it."
        "owners of objects that leave it out"
        "Try it with --objects; waive the finding if the combination or the rule takes the filled-in field."
    DefaultMissed "default-missed" RejectsObjects Undecidable true
        "The field was filled in before the server validated, and a combination, or the least number of fields, counts it. Objects that leave it out lack it from now on, and may be refused."
        "owners of objects that leave it out"
        "Keep the default, or set the value in manifests first; try it with --objects."
    ListLoosened "list-type-changed" Clients Warning false
        "Under server-side apply, entries of this list are owned and merged differently."
        "clients that use server-side apply, and several writers of one list"
        "Check that no two writers count on sharing the list."
    MapTypeChanged "map-type-changed" Clients Warning false
        "Under server-side apply, the fields in here are owned as one or one by one, unlike before. Nothing is refused."
        "clients that use server-side apply"
        "Check that no two writers count on sharing it."
    FieldAdded "field-added" NoEffect Info false
        "A new optional field."
        "nobody"
        "Nothing."
    Loosened "loosened" NoEffect Info false
        "More is allowed than before."
        "nobody"
        "Nothing."
    ObjectsHurt "objects-hurt" RejectsObjects Breaking false
        "Objects that were looked at are refused here from now on, or lose something, and no change that was found explains it."
        "owners of these objects"
        "Look at the objects that are named, and at both schemas of this place."
    TooManyHarmless "too-many-changes" NoEffect Info false
        "There are more changes that stop nobody than are written down."
        "nobody"
        "Nothing."
    NotComparable "not-comparable" RejectsObjects Undecidable false
        "A part of the schema could not be read, and it changed."
        "owners of objects that use it"
        "Look at this part by hand."
}

impl Kind {
    pub fn id(self) -> &'static str {
        self.meaning().id
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}
