//! Names of models, as Ollama understands them.

/// A model's full name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    host: String,
    namespace: String,
    model: String,
    tag: String,
}

const HOST: &str = "registry.ollama.ai";
const NAMESPACE: &str = "library";
const TAG: &str = "latest";

impl ModelName {
    /// `phi3`, `user/model:tag`, `hf.co/user/model:Q4_K_M`; what is left out is as Ollama has it.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text
            .strip_prefix("https://")
            .or_else(|| text.strip_prefix("http://"))
            .unwrap_or(text);
        let parts: Vec<&str> = text.split('/').collect();
        let (host, namespace, last) = match parts[..] {
            [last] => (HOST, NAMESPACE, last),
            [namespace, last] => (HOST, namespace, last),
            [host, namespace, last] => (host, namespace, last),
            _ => return None,
        };
        let (model, tag) = last.split_once(':').unwrap_or((last, TAG));
        let host_is_valid = host
            .split_once(':')
            .map_or(is_part(host), |(host, port)| is_part(host) && is_part(port));
        let is_valid = host_is_valid && [namespace, model, tag].into_iter().all(is_part);
        is_valid.then(|| Self {
            host: host.to_owned(),
            namespace: namespace.to_owned(),
            model: model.to_owned(),
            tag: tag.to_owned(),
        })
    }

    /// As Ollama lists it: what is usual is left out, the tag never.
    pub fn short(&self) -> String {
        let Self {
            host,
            namespace,
            model,
            tag,
        } = self;
        match (host.as_str(), namespace.as_str()) {
            (HOST, NAMESPACE) => format!("{model}:{tag}"),
            (HOST, _) => format!("{namespace}/{model}:{tag}"),
            _ => format!("{host}/{namespace}/{model}:{tag}"),
        }
    }

    /// Whether a listed name means this model; Ollama does not tell letters apart by case.
    pub fn is(&self, listed: &str) -> bool {
        Self::parse(listed).is_some_and(|other| other.short().eq_ignore_ascii_case(&self.short()))
    }

    /// Below Ollama's folder of models: the file that is written last, once all weights are there.
    pub fn manifest(&self) -> String {
        format!(
            "manifests/{}/{}/{}/{}",
            self.host, self.namespace, self.model, self.tag
        )
    }
}

fn is_part(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && text.len() <= 80
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("phi3", "phi3:latest", "manifests/registry.ollama.ai/library/phi3/latest")]
    #[case(
        "llama3.1:8b",
        "llama3.1:8b",
        "manifests/registry.ollama.ai/library/llama3.1/8b"
    )]
    #[case("me/mine", "me/mine:latest", "manifests/registry.ollama.ai/me/mine/latest")]
    #[case(
        "hf.co/org/model:Q4_K_M",
        "hf.co/org/model:Q4_K_M",
        "manifests/hf.co/org/model/Q4_K_M"
    )]
    #[case("http://reg:5000/a/b", "reg:5000/a/b:latest", "manifests/reg:5000/a/b/latest")]
    fn names_are_completed(#[case] given: &str, #[case] short: &str, #[case] manifest: &str) {
        let name = ModelName::parse(given).expect("valid");
        assert_eq!(
            (name.short().as_str(), name.manifest().as_str()),
            (short, manifest)
        );
        assert!(name.is(short) && name.is(given) && !name.is("another"));
    }

    #[rstest]
    #[case("")]
    #[case("a b")]
    #[case("../../etc/passwd")]
    #[case("a/b/c/d")]
    #[case("phi3:")]
    #[case("phi3:$(reboot)")]
    #[case("-x")]
    fn rubbish_is_refused(#[case] given: &str) {
        assert_eq!(ModelName::parse(given), None);
    }
}
