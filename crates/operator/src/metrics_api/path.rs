//! What a request asks for, from its path and query. Pure.

use kube::core::{Expression, Selector, SelectorExt as _};

use super::{metric::Metric, selector};

pub const EXTERNAL: &str = "external.metrics.k8s.io";
pub const CUSTOM: &str = "custom.metrics.k8s.io";
/// The label with the model's name, beside those of the pod.
pub const MODEL: &str = "model";
/// The label with the pod's name.
pub const POD: &str = "pod";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    External1,
    Custom1,
    Custom2,
}

impl Version {
    pub const ALL: [Self; 3] = [Self::External1, Self::Custom1, Self::Custom2];

    pub fn group(self) -> &'static str {
        match self {
            Self::External1 => EXTERNAL,
            Self::Custom1 | Self::Custom2 => CUSTOM,
        }
    }

    pub fn version(self) -> &'static str {
        match self {
            Self::External1 | Self::Custom1 => "v1beta1",
            Self::Custom2 => "v1beta2",
        }
    }

    /// Name of the APIService.
    pub fn api_service(self) -> String {
        format!("{}.{}", self.version(), self.group())
    }

    fn of(group: &str, version: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|known| known.group() == group && known.version() == version)
    }
}

#[derive(Debug, PartialEq)]
pub enum Question {
    Health,
    OpenApi2,
    OpenApi3,
    Groups,
    Group(&'static str),
    Resources(Version),
    Values(Values),
}

/// Values of one metric in one namespace.
#[derive(Debug, PartialEq)]
pub struct Values {
    pub version: Version,
    pub namespace: String,
    /// Of one pod, or of all that are selected.
    pub pod: Option<String>,
    pub metric: Metric,
    /// For the API server: which pods.
    pub pods: Selector,
    /// For ourselves: which series of a pod.
    pub series: Selector,
}

impl Values {
    /// Whether a series is asked for.
    pub fn wants(&self, pod: &str, model: &str) -> bool {
        let labels = [
            (POD.to_owned(), pod.to_owned()),
            (MODEL.to_owned(), model.to_owned()),
        ];
        self.series.matches(&labels.into())
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
}

impl Refusal {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
        }
    }

    fn not_found() -> Self {
        Self::new(
            404,
            "NotFound",
            "the server could not find the requested resource",
        )
    }
}

pub fn question(path: &str, query: Option<&str>) -> Result<Question, Refusal> {
    let decoded: Option<Vec<String>> = path
        .trim_matches('/')
        .split('/')
        .map(|part| decode(part, false))
        .collect();
    let decoded = decoded.ok_or_else(Refusal::not_found)?;
    let parts: Vec<&str> = decoded.iter().map(String::as_str).collect();
    match parts.as_slice() {
        ["healthz" | "livez" | "readyz"] => Ok(Question::Health),
        ["openapi", "v2"] => Ok(Question::OpenApi2),
        ["openapi", "v3"] => Ok(Question::OpenApi3),
        ["apis"] => Ok(Question::Groups),
        ["apis", group] => [EXTERNAL, CUSTOM]
            .into_iter()
            .find(|known| known == group)
            .map(Question::Group)
            .ok_or_else(Refusal::not_found),
        ["apis", group, version, rest @ ..] => {
            let version = Version::of(group, version).ok_or_else(Refusal::not_found)?;
            if rest.is_empty() {
                Ok(Question::Resources(version))
            } else {
                values(version, rest, query.unwrap_or_default()).map(Question::Values)
            }
        }
        _ => Err(Refusal::not_found()),
    }
}

fn values(version: Version, rest: &[&str], query: &str) -> Result<Values, Refusal> {
    let (namespace, pod, metric) = match (version, rest) {
        (Version::External1, ["namespaces", namespace, metric]) => (namespace, None, metric),
        (Version::Custom1 | Version::Custom2, ["namespaces", namespace, "pods", pod, metric]) => {
            (namespace, Some(*pod).filter(|pod| *pod != "*"), metric)
        }
        (Version::Custom1 | Version::Custom2, ["namespaces", _, kind, _, _]) => {
            return Err(Refusal::new(
                404,
                "NotFound",
                format!("there are metrics of pods only, not of {kind}"),
            ));
        }
        _ => return Err(Refusal::not_found()),
    };
    let known = Metric::of(metric).ok_or_else(|| {
        let names: Vec<&str> = Metric::ALL.into_iter().map(Metric::name).collect();
        Refusal::new(
            404,
            "NotFound",
            format!("there is no metric {metric:?}; there are {}", names.join(", ")),
        )
    })?;
    for name in std::iter::once(*namespace).chain(pod) {
        if !is_name(name) {
            return Err(Refusal::new(400, "BadRequest", format!("{name:?} is no name")));
        }
    }
    let read = |name: &str| -> Result<Vec<Expression>, Refusal> {
        let bad = |message: String| Refusal::new(400, "BadRequest", message);
        let text =
            parameter(query, name).ok_or_else(|| bad(format!("cannot decode the query parameter {name}")))?;
        selector::parse(&text).map_err(bad)
    };
    let (pods, series) = if version == Version::External1 {
        selector::divide(read("labelSelector")?, &[MODEL, POD])
    } else {
        let series: Selector = read("metricLabelSelector")?.into_iter().collect();
        (read("labelSelector")?.into_iter().collect(), series)
    };
    Ok(Values {
        version,
        namespace: (*namespace).to_owned(),
        pod: pod.map(ToOwned::to_owned),
        metric: known,
        pods,
        series,
    })
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 253
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.'))
        && !text.starts_with('.')
}

/// A parameter of the query, empty when it is absent.
fn parameter(query: &str, name: &str) -> Option<String> {
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .find(|(key, _)| *key == name)
        .map_or(Some(String::new()), |(_, value)| decode(value, true))
}

fn decode(text: &str, plus_is_space: bool) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn read(path: &str) -> Result<Question, Refusal> {
        match path.split_once('?') {
            Some((path, query)) => question(path, Some(query)),
            None => question(path, None),
        }
    }

    #[rstest]
    #[case(
        "/apis/external.metrics.k8s.io/v1beta1",
        Question::Resources(Version::External1)
    )]
    #[case("/apis/custom.metrics.k8s.io/v1beta2/", Question::Resources(Version::Custom2))]
    #[case("/apis/custom.metrics.k8s.io", Question::Group(CUSTOM))]
    #[case("/apis", Question::Groups)]
    #[case("/openapi/v2", Question::OpenApi2)]
    #[case("/healthz", Question::Health)]
    fn discovery(#[case] path: &str, #[case] expected: Question) {
        assert_eq!(read(path), Ok(expected));
    }

    #[test]
    fn an_external_metric() {
        let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/team/gantry_model_queue_depth\
                    ?labelSelector=app%3Dphi%2Cmodel+in+%28phi-3b%29&timeout=5s";
        let Ok(Question::Values(values)) = read(path) else {
            panic!("it is one")
        };
        assert_eq!(
            (values.namespace.as_str(), values.metric),
            ("team", Metric::QueueDepth)
        );
        assert_eq!(values.pods.to_string(), "app=phi");
        assert!(values.wants("p", "phi-3b") && !values.wants("p", "other"));
    }

    #[test]
    fn a_metric_of_pods() {
        for (pod, expected) in [("*", None), ("%2A", None), ("phi-1", Some("phi-1"))] {
            let path = format!(
                "/apis/custom.metrics.k8s.io/v1beta2/namespaces/team/pods/{pod}/gantry_model_in_flight\
                 ?labelSelector=model%3Dx&metricLabelSelector=model%3Dphi"
            );
            let Ok(Question::Values(values)) = read(&path) else {
                panic!("it is one")
            };
            assert_eq!(values.pod.as_deref(), expected);
            // A label of that name may well be on the pods.
            assert_eq!(values.pods.to_string(), "model=x");
            assert!(values.wants("p", "phi") && !values.wants("p", "other"));
        }
    }

    #[rstest]
    #[case("/", 404)]
    #[case("/apis/metrics.k8s.io/v1beta1", 404)]
    #[case("/apis/external.metrics.k8s.io/v1beta2", 404)]
    #[case("/apis/external.metrics.k8s.io/v1beta1/namespaces/team/up", 404)]
    #[case(
        "/apis/custom.metrics.k8s.io/v1beta1/namespaces/team/services/x/gantry_model_in_flight",
        404
    )]
    #[case(
        "/apis/custom.metrics.k8s.io/v1beta1/namespaces/team/pods/x%2Fy/gantry_model_in_flight",
        400
    )]
    #[case(
        "/apis/external.metrics.k8s.io/v1beta1/namespaces/../gantry_model_in_flight",
        400
    )]
    #[case(
        "/apis/external.metrics.k8s.io/v1beta1/namespaces/team/gantry_model_in_flight?labelSelector=%zz",
        400
    )]
    #[case(
        "/apis/external.metrics.k8s.io/v1beta1/namespaces/team/gantry_model_in_flight?labelSelector=a%28",
        400
    )]
    #[case("/apis/%ff", 404)]
    fn the_rest_is_refused(#[case] path: &str, #[case] code: u16) {
        assert_eq!(read(path).unwrap_err().code, code, "{path}");
    }
}
