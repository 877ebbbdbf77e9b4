//! Compares two definitions of one kind: names, scope, versions, conversion, subresources. Schemas are `walk`'s.

use std::collections::{BTreeSet, HashMap};

use super::{
    crd::{Column, Crd, Version},
    finding::{Class, Direction, Finding, Impact},
    kind::Kind,
    print,
    server::ServerVersion,
    sink::Sink,
    walk::{self, Work},
    words::shorten,
};

pub fn compare(old: &Crd, new: &Crd, direction: Direction, server: Option<ServerVersion>) -> Vec<Finding> {
    let mut sink = Sink::new(&old.name, direction, server);
    let mut work = Work::default();
    names(&mut sink, old, new);
    // Said once for all places, if there is one.
    if old.preserves_unknown && !new.preserves_unknown {
        sink.untold = Some((Kind::UnknownPruned, 0));
    }
    let (before, afterwards) = (by_name(old), by_name(new));
    conversion(&mut sink, old, new, &before);
    storage(&mut sink, old, new);
    beside_the_stored(&mut sink, new, &before);
    for version in &old.versions {
        match afterwards.get(version.name.as_str()) {
            Some(after) => sink.in_version(&version.name, |sink| {
                versions(sink, version, after);
                sink.drops_status = after.status;
                walk::compare(sink, &version.schema, &after.schema, &mut work);
            }),
            None => removed(&mut sink, old, version),
        }
    }
    storage_refuses(&mut sink, old, new, &mut work);
    let came = |version: &&Version| !before.contains_key(version.name.as_str());
    for version in new.versions.iter().filter(came) {
        let after = if version.served { "served" } else { "not served" };
        sink.add_at(
            Kind::VersionAdded,
            format!("spec.versions[{}]", version.name),
            "no such version",
            after,
        );
    }
    if sink.untold.is_some_and(|(_, places)| places > 0) {
        sink.add_at(
            Kind::PruningTurnedOn,
            "spec.preserveUnknownFields",
            "true",
            "false",
        );
    }
    let mut findings = sink.finish();
    let stored = old.stored_versions.as_ref().or(new.stored_versions.as_ref());
    unserved_twice(&before, &afterwards, stored, &mut findings);
    findings
}

type ByName<'a> = HashMap<&'a str, &'a Version>;

fn by_name(crd: &Crd) -> ByName<'_> {
    let versions = crd.versions.iter();
    versions.map(|version| (version.name.as_str(), version)).collect()
}

/// Nobody writes objects in a version that neither side serves, so that nothing is refused there. Objects that are
/// stored in it are read by its schema all the same, and lose what that does not name.
fn unserved_twice(
    old: &ByName<'_>,
    new: &ByName<'_>,
    stored: Option<&BTreeSet<String>>,
    findings: &mut [Finding],
) {
    let idle = |version: &&Version| !version.served && !version.storage;
    for finding in findings.iter_mut() {
        let Some(name) = finding.version.as_deref() else {
            continue;
        };
        let is_idle = old.get(name).is_some_and(idle) && new.get(name).is_some_and(idle);
        if !is_idle || finding.impact == Impact::Info {
            continue;
        }
        let loses = finding.class == Class::DataLoss || finding.kind == Kind::NotComparable;
        let is_read = if loses {
            stored.map(|stored| stored.contains(name))
        } else {
            Some(false)
        };
        match is_read {
            Some(true) => {}
            Some(false) => {
                finding.impact = Impact::Info;
                finding.class = Class::NoEffect;
                finding.undecidable = None;
                finding
                    .why
                    .to_mut()
                    .push_str(" But this version is neither served nor the stored one, before and after.");
            }
            None => {
                finding.impact = Impact::Undecidable;
                finding.undecidable = Some(
                    "this version is neither served nor the stored one, and whether older objects are stored in it, only a cluster's status.storedVersions tells"
                        .to_owned(),
                );
            }
        }
    }
}

fn names(sink: &mut Sink<'_>, old: &Crd, new: &Crd) {
    if old.scope != new.scope {
        sink.add_at(Kind::ScopeChanged, "spec.scope", &old.scope, &new.scope);
    }
    if old.kind != new.kind {
        sink.add_at(Kind::KindChanged, "spec.names.kind", &old.kind, &new.kind);
    }
    for (path, before, after) in [
        ("spec.names.singular", &old.singular, &new.singular),
        ("spec.names.listKind", &old.list_kind, &new.list_kind),
    ] {
        if before != after {
            sink.add_at(Kind::NamesChanged, path, before, after);
        }
    }
    for (path, before, after) in [
        ("spec.names.shortNames", &old.short_names, &new.short_names),
        ("spec.names.categories", &old.categories, &new.categories),
    ] {
        let gone: Vec<&str> = before.difference(after).map(String::as_str).collect();
        if !gone.is_empty() {
            sink.add_at(Kind::NamesChanged, path, gone.join(", "), "gone");
        }
    }
}

fn removed(sink: &mut Sink<'_>, old: &Crd, version: &Version) {
    let path = format!("spec.versions[{}]", version.name);
    let stored = old
        .stored_versions
        .as_ref()
        .map(|versions| versions.contains(&version.name) || version.storage);
    let before = match (version.storage, version.served) {
        (true, _) => "stored",
        (false, true) => "served",
        (false, false) => "not served",
    };
    if stored == Some(false) && !version.served {
        sink.add_at(Kind::VersionNeverStored, path, before, "removed");
        return;
    }
    if stored == Some(false) {
        sink.add_at(Kind::VersionUnserved, path, before, "removed");
        sink.note("This cluster has nothing stored in it; clients are refused all the same.");
        return;
    }
    sink.add_at(Kind::VersionRemoved, path, before, "removed");
    match stored {
        Some(true) => {
            sink.note("This cluster's status.storedVersions names it: the update is going to be refused.");
        }
        _ => sink.note("Whether objects are stored in it, only a cluster's status.storedVersions tells."),
    }
}

fn versions(sink: &mut Sink<'_>, old: &Version, new: &Version) {
    let path = |part: &str| format!("spec.versions[{}].{part}", old.name);
    if old.served && !new.served {
        sink.add_at(Kind::VersionUnserved, path("served"), "served", "not served");
    } else if !old.served && new.served {
        sink.add_at(Kind::Loosened, path("served"), "not served", "served");
    }
    if new.deprecated && !old.deprecated {
        sink.add_at(
            Kind::VersionDeprecated,
            path("deprecated"),
            "not deprecated",
            "deprecated",
        );
    }
    match (old.status, new.status) {
        (true, false) => sink.add_at(Kind::StatusRemoved, path("subresources.status"), "there", "gone"),
        (false, true) => sink.add_at(
            Kind::StatusAdded,
            path("subresources.status"),
            "an ordinary field",
            "a subresource",
        ),
        _ => {}
    }
    let asks = |version: &Version| version.status && version.schema.required.contains("status");
    if asks(new) && !asks(old) {
        sink.add_at(
            Kind::StatusRequired,
            ".status",
            "not asked of new objects",
            "required, and dropped from new objects",
        );
    }
    match (&old.scale, &new.scale) {
        (Some(_), None) => sink.add_at(Kind::ScaleRemoved, path("subresources.scale"), "there", "gone"),
        (Some(before), Some(after)) if before != after => {
            let words = |scale: &super::crd::Scale| {
                let selector = scale.selector.as_deref().unwrap_or("no selector");
                format!("{}, {}, {selector}", scale.spec, scale.status)
            };
            sink.add_at(
                Kind::ScaleChanged,
                path("subresources.scale"),
                words(before),
                words(after),
            );
        }
        _ => {}
    }
    if old.columns != new.columns {
        let words = |columns: &[Column]| {
            let columns: Vec<String> = columns.iter().map(ToString::to_string).collect();
            if columns.is_empty() {
                "none".to_owned()
            } else {
                columns.join(", ")
            }
        };
        sink.add_at(
            Kind::ColumnsChanged,
            path("additionalPrinterColumns"),
            words(&old.columns),
            words(&new.columns),
        );
    }
    for field in old.selectable.difference(&new.selectable) {
        sink.add_at(
            Kind::SelectableRemoved,
            path("selectableFields"),
            field.as_str(),
            "gone",
        );
    }
}

fn conversion(sink: &mut Sink<'_>, old: &Crd, new: &Crd, known: &ByName<'_>) {
    let words = |webhook: bool| if webhook { "Webhook" } else { "None" };
    let (before, after) = (&old.conversion, &new.conversion);
    let path = "spec.conversion";
    if before.webhook && !after.webhook {
        let lost = lost_by_relabelling(old, new, known);
        let kind = if !lost.is_empty() {
            Kind::ConversionDropped
        } else if new.versions.len() > 1 {
            Kind::ConversionChanged
        } else {
            Kind::Loosened
        };
        sink.add_at(kind, path, words(true), words(false));
        if !lost.is_empty() {
            sink.note(&format!("Not the same in all versions: {}.", few(&lost)));
        }
        return;
    }
    let moved = before.target != after.target || !before.review_versions.is_subset(&after.review_versions);
    if before.webhook != after.webhook || (after.webhook && moved) {
        sink.add_at(
            Kind::ConversionChanged,
            path,
            words(before.webhook),
            if before.webhook == after.webhook {
                "another webhook"
            } else {
                words(true)
            },
        );
    }
}

/// What does not survive the way from the other versions to the stored one, or back.
fn lost_by_relabelling(old: &Crd, new: &Crd, known: &ByName<'_>) -> BTreeSet<String> {
    let mut lost = BTreeSet::new();
    let Some(stored) = new.storage() else {
        return lost;
    };
    let was_stored = old.storage().map(|version| version.name.as_str());
    let others = new.versions.iter().filter(|version| {
        let name = version.name.as_str();
        name != stored.name && known.contains_key(name) && (version.served || was_stored == Some(name))
    });
    let mut left = MAX_BETWEEN;
    for other in others {
        lost.extend(lost_between(other, stored, &mut left).places());
        if other.served {
            lost.extend(lost_between(stored, other, &mut left).places());
        }
    }
    lost
}

/// How many fields are looked at for what is lost between versions of one definition: there may be many large ones.
const MAX_BETWEEN: usize = 100_000;

/// What one version loses of what another one holds, when only the name of the version is changed.
enum Lost {
    Nothing,
    Places(Vec<String>),
    /// There was too much to look at.
    Unknown,
}

impl Lost {
    fn places(self) -> Vec<String> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Places(places) => places,
            Self::Unknown => vec!["versions that are too many or too large to be compared".to_owned()],
        }
    }
}

fn lost_between(before: &Version, after: &Version, left: &mut usize) -> Lost {
    if before.schema == after.schema {
        return Lost::Nothing;
    }
    if *left > 0 {
        *left = left.saturating_sub(1 + before.schema.size() + after.schema.size());
    }
    if *left == 0 {
        return Lost::Unknown;
    }
    let mut inner = Sink::new("", Direction::Forward, None);
    inner.emptied = Some(Vec::new());
    walk::compare(
        &mut inner,
        &before.schema,
        &after.schema,
        &mut Work::without_rules(),
    );
    // A field of another type is of no more use than one that is gone.
    let is_lost = |finding: &Finding| finding.class == Class::DataLoss || finding.kind == Kind::TypeChanged;
    let emptied = inner.emptied.take().unwrap_or_default();
    let lost = inner.finish().into_iter().filter(is_lost);
    let lost: Vec<String> = lost.map(|finding| finding.path).chain(emptied).collect();
    if lost.is_empty() {
        Lost::Nothing
    } else {
        Lost::Places(lost)
    }
}

/// A few of many places.
fn few<'p>(places: impl IntoIterator<Item = &'p String>) -> String {
    let places: Vec<&str> = places.into_iter().map(String::as_str).collect();
    shorten(&places)
}

fn storage(sink: &mut Sink<'_>, old: &Crd, new: &Crd) {
    let (Some(before), Some(after)) = (old.storage(), new.storage()) else {
        return;
    };
    if before.name == after.name {
        return;
    }
    sink.add_at(
        Kind::StorageMoved,
        "spec.versions[].storage",
        &before.name,
        &after.name,
    );
    if new.conversion.webhook || old.preserves_unknown || new.version(&before.name).is_none() {
        return;
    }
    // Without a webhook objects are only relabelled, so the new storage version has to know what the old one kept.
    let lost = lost_between(before, after, &mut usize::MAX.clone()).places();
    if !lost.is_empty() {
        let named = few(&lost);
        sink.add_at(
            Kind::StorageLoses,
            "spec.versions[].storage",
            format!("{} knows {named}", before.name),
            format!("{} does not", after.name),
        );
    }
}

/// What is stored by another name alone meets what that version asks for.
fn storage_refuses(sink: &mut Sink<'_>, old: &Crd, new: &Crd, work: &mut Work) {
    let (Some(before), Some(after)) = (old.storage(), new.storage()) else {
        return;
    };
    let is_told = new.conversion.webhook || new.version(&before.name).is_none();
    if before.name == after.name || is_told || before.schema == after.schema {
        return;
    }
    let mut inner = sink.beside();
    walk::compare(&mut inner, &before.schema, &after.schema, work);
    let refuses = |finding: &Finding| {
        let harms = finding.impact <= Impact::Undecidable;
        // That something is of another type is told as lost.
        harms
            && finding.kind != Kind::TypeChanged
            && (finding.class == Class::RejectsObjects || finding.ratcheted)
    };
    let refused: Vec<Finding> = inner.finish().into_iter().filter(refuses).collect();
    let Some(first) = refused.first() else { return };
    let places = refused
        .iter()
        .map(|finding| &finding.path)
        .collect::<BTreeSet<_>>();
    sink.add_at(
        Kind::StorageRejects,
        "spec.versions[].storage",
        format!("{} takes more at {}", before.name, few(places)),
        format!("{} refuses it", after.name),
    );
    sink.stands_for(|| print::of_all(refused.iter().map(|finding| print::of_text(&finding.fingerprint))));
    if refused.iter().all(|finding| finding.ratcheted) {
        sink.ratcheted();
    }
    if old.version(&after.name).is_some_and(|known| known.served) {
        sink.undecidable(format!(
            "{} was served before, and whether there are objects that do not meet it depends on what wrote them",
            after.name
        ));
    } else if refused
        .iter()
        .all(|finding| finding.impact == Impact::Undecidable)
    {
        sink.undecidable(first.undecidable.clone().unwrap_or_default());
    }
}

/// Versions that are served from now on beside the stored one, which knows more: who writes through them takes it away.
fn beside_the_stored(sink: &mut Sink<'_>, new: &Crd, known: &ByName<'_>) {
    let Some(stored) = new.storage() else { return };
    if new.conversion.webhook || new.preserves_unknown {
        return;
    }
    let was_served = |version: &Version| known.get(version.name.as_str()).is_some_and(|old| old.served);
    let mut left = MAX_BETWEEN;
    for version in &new.versions {
        if version.name == stored.name || !version.served || was_served(version) {
            continue;
        }
        let lost = lost_between(stored, version, &mut left);
        let is_open = matches!(lost, Lost::Unknown);
        let lost = lost.places();
        if lost.is_empty() {
            continue;
        }
        sink.add_at(
            Kind::VersionLoses,
            format!("spec.versions[{}].served", version.name),
            "not served",
            format!("served, without {} of {}", few(&lost), stored.name),
        );
        if is_open {
            sink.undecidable("the versions of this definition are too many or too large to be compared");
        }
    }
}
