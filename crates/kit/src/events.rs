//! Events about roots. They mark transitions, which do not repeat, so each is one create and nothing is remembered of it.

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::Resource;

use crate::{error::shorten, store::ObjectKey};

/// Who reports, on every event.
const CONTROLLER: &str = "gantry";
/// What the server takes for a note, and for a name with our ending.
const MOST_NOTE: usize = 1000;
const MOST_NAME: usize = 230;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Normal,
    Warning,
}

/// What an event says.
pub struct News {
    pub severity: Severity,
    pub reason: String,
    pub note: String,
}

/// The root that an event is about; it need not exist any more.
pub fn about<K: Resource<DynamicType = ()>>(key: &ObjectKey, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: Some(key.name.clone()),
        namespace: Some(key.namespace.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// `instance` is the replica that reports.
pub fn event(about: ObjectReference, news: News, instance: &str, now: Timestamp) -> Event {
    let name = about.name.as_deref().unwrap_or_default();
    // All names are ASCII. What is cut must not end in what a name may not end in.
    let name = name.get(..MOST_NAME).unwrap_or(name).trim_end_matches(['-', '.']);
    let note = Some(shorten(news.note, MOST_NOTE)).filter(|note| !note.is_empty());
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:x}", now.as_nanosecond())),
            namespace: about.namespace.clone(),
            ..ObjectMeta::default()
        },
        regarding: Some(about),
        type_: Some(
            match news.severity {
                Severity::Normal => "Normal",
                Severity::Warning => "Warning",
            }
            .to_owned(),
        ),
        reason: Some(news.reason),
        note,
        action: Some("Reconcile".to_owned()),
        event_time: Some(MicroTime(now)),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn an_event_fits_what_the_server_takes() {
        let key = ObjectKey::new("ns", format!("{}.{}", "n".repeat(MOST_NAME - 1), "m".repeat(20)));
        let news = News {
            severity: Severity::Warning,
            reason: "CrashLoop".to_owned(),
            note: "x".repeat(5000),
        };
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let event = event(about::<ConfigMap>(&key, "u"), news, "pod-1", now);
        let name = event.metadata.name.unwrap();
        assert!(name.len() <= 253 && !name.contains(".."), "{name}");
        assert!(event.note.unwrap().len() <= 1024);
        assert_eq!(event.metadata.namespace.as_deref(), Some("ns"));
        let about = event.regarding.unwrap();
        assert_eq!(
            (about.kind.as_deref(), about.name),
            (Some("ConfigMap"), Some(key.name))
        );
        assert_eq!(event.type_.as_deref(), Some("Warning"));
    }
}
