//! Which requests are work for a model, and what the caller's protocol looks like. Pure.

use http::Method;
use serde_json::json;

/// A closed set, because it labels metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Generate,
    Chat,
    Embed,
    Embeddings,
    OpenAiChat,
    OpenAiCompletions,
    OpenAiEmbeddings,
    OpenAiResponses,
    AnthropicMessages,
    /// Lists, pulls, blobs, health: passed on at once and never queued.
    Other,
}

impl Route {
    pub fn of(method: &Method, path: &str) -> Self {
        if method != Method::POST {
            return Self::Other;
        }
        match path {
            "/api/generate" => Self::Generate,
            "/api/chat" => Self::Chat,
            "/api/embed" => Self::Embed,
            "/api/embeddings" => Self::Embeddings,
            "/v1/chat/completions" => Self::OpenAiChat,
            "/v1/completions" => Self::OpenAiCompletions,
            "/v1/embeddings" => Self::OpenAiEmbeddings,
            "/v1/responses" => Self::OpenAiResponses,
            "/v1/messages" => Self::AnthropicMessages,
            _ => Self::Other,
        }
    }

    pub fn label(self) -> &'static str {
        match self {
            Self::Generate => "/api/generate",
            Self::Chat => "/api/chat",
            Self::Embed => "/api/embed",
            Self::Embeddings => "/api/embeddings",
            Self::OpenAiChat => "/v1/chat/completions",
            Self::OpenAiCompletions => "/v1/completions",
            Self::OpenAiEmbeddings => "/v1/embeddings",
            Self::OpenAiResponses => "/v1/responses",
            Self::AnthropicMessages => "/v1/messages",
            Self::Other => "other",
        }
    }

    /// Whether a model has to work for it.
    pub fn is_work(self) -> bool {
        self != Self::Other
    }

    /// An error in the shape that clients of this path expect: a text at Ollama's own routes, an object at the others.
    pub fn error(path: &str, message: &str) -> String {
        let body = if path == "/v1/messages" {
            json!({"type": "error", "error": {"type": "api_error", "message": message}})
        } else if path.starts_with("/v1/") {
            json!({"error": {"message": message, "type": "api_error", "param": null, "code": null}})
        } else {
            json!({"error": message})
        };
        body.to_string()
    }
}

/// Name of a model as Ollama resolves it: registry, namespace and tag have defaults, and case does not count.
pub fn full_name(name: &str) -> String {
    let name = name.trim().to_ascii_lowercase();
    let (path, tag) = match name.rsplit_once(':') {
        // A colon before a slash belongs to the registry's port.
        Some((path, tag)) if !tag.contains('/') => (path, tag),
        _ => (name.as_str(), "latest"),
    };
    let path = match path.matches('/').count() {
        0 => format!("registry.ollama.ai/library/{path}"),
        1 => format!("registry.ollama.ai/{path}"),
        _ => path.to_owned(),
    };
    format!("{path}:{tag}")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("phi", "phi:latest", true)]
    #[case("phi", "PHI", true)]
    #[case("phi:latest", "registry.ollama.ai/library/phi", true)]
    #[case("team/phi", "registry.ollama.ai/team/phi:latest", true)]
    #[case("localhost:5000/team/phi", "localhost:5000/team/phi:latest", true)]
    #[case("phi:3b", "phi", false)]
    #[case("phi", "team/phi", false)]
    #[case("phi", "", false)]
    fn names_are_compared_as_ollama_does(#[case] one: &str, #[case] other: &str, #[case] same: bool) {
        assert_eq!(full_name(one) == full_name(other), same);
    }

    #[rstest]
    #[case(Method::POST, "/api/chat", true)]
    #[case(Method::GET, "/api/chat", false)]
    #[case(Method::POST, "/api/pull", false)]
    #[case(Method::POST, "/v1/chat/completions", true)]
    #[case(Method::HEAD, "/", false)]
    fn only_what_a_model_answers_is_work(#[case] method: Method, #[case] path: &str, #[case] work: bool) {
        assert_eq!(Route::of(&method, path).is_work(), work);
    }

    #[test]
    fn errors_have_the_shape_of_their_protocol() {
        assert_eq!(Route::error("/api/chat", "busy"), r#"{"error":"busy"}"#);
        let openai: serde_json::Value =
            serde_json::from_str(&Route::error("/v1/chat/completions", "busy")).unwrap();
        assert_eq!(openai["error"]["message"], "busy");
        let anthropic: serde_json::Value =
            serde_json::from_str(&Route::error("/v1/messages", "busy")).unwrap();
        assert_eq!(anthropic["type"], "error");
    }
}
