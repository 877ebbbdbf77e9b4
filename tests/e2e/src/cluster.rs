//! A cluster to test on, and a namespace in it.

use std::{
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use k8s_openapi::{
    api::{
        authentication::v1::TokenRequest,
        core::v1::{Namespace, ServiceAccount},
        rbac::v1::{ClusterRole, ClusterRoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::{ApiResource, DynamicObject},
    runtime::wait::{await_condition, conditions},
};
use serde_json::{Value, json};

const OPERATOR: &str = "gantry-e2e";

/// Admin access to a cluster, one namespace of our own, and the operator's identity.
pub struct Cluster {
    pub client: Client,
    pub admin: Config,
    /// What the operator under test uses: its own ServiceAccount, not ours.
    pub operator: Config,
    pub namespace: String,
}

impl Cluster {
    /// The cluster with simulated nodes.
    pub async fn simulated() -> anyhow::Result<Self> {
        Self::named("GANTRY_TEST_SIM").await
    }

    /// The cluster with a real node.
    pub async fn real() -> anyhow::Result<Self> {
        Self::named("GANTRY_TEST_REAL").await
    }

    async fn named(variable: &str) -> anyhow::Result<Self> {
        // `RUST_LOG=debug` shows what the operators under test say.
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_test_writer()
            .try_init();
        let admin = config(variable)
            .await?
            .with_context(|| format!("{variable} must name a kubeconfig"))?;
        let client = Client::try_from(admin.clone())?;
        install_crds(&client).await?;
        let operator = operator_identity(&client, &admin).await?;
        let cluster = Self {
            client,
            admin,
            operator,
            namespace: String::new(),
        };
        cluster.clear_abandoned().await?;
        cluster.in_new_namespace().await
    }

    /// Removes what tests left that failed or were ended: on a node of two cores their pods would keep the next ones out.
    async fn clear_abandoned(&self) -> anyhow::Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        for found in namespaces.list_metadata(&ListParams::default()).await? {
            let namespace = found.name_any();
            let process = namespace
                .strip_prefix("t-")
                .and_then(|rest| rest.split('-').next());
            let is_abandoned = process.is_some_and(|process| !Path::new("/proc").join(process).exists());
            if is_abandoned && found.metadata.deletion_timestamp.is_none() {
                eprintln!("removing {namespace}, which a test left");
                let left = Self {
                    client: self.client.clone(),
                    admin: self.admin.clone(),
                    operator: self.operator.clone(),
                    namespace,
                };
                // Others may be at it too.
                if let Err(error) = left.done().await {
                    eprintln!("it stays: {error:#}");
                }
            }
        }
        Ok(())
    }

    /// The same cluster with a fresh namespace.
    pub async fn in_new_namespace(&self) -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let namespace = format!(
            "t-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        Api::all(self.client.clone())
            .create(&PostParams::default(), &object)
            .await?;
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), &namespace);
        eventually(async || accounts.get("default").await.map_err(Into::into)).await?;
        Ok(Self {
            client: self.client.clone(),
            admin: self.admin.clone(),
            operator: self.operator.clone(),
            namespace,
        })
    }

    pub fn api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, resource)
    }

    /// Creates the object, or replaces all of it but the status, as `kubectl replace` would.
    pub async fn apply(&self, resource: &ApiResource, object: &Value) -> anyhow::Result<DynamicObject> {
        let api = self.api(resource);
        let mut wanted: DynamicObject = serde_json::from_value(object.clone())?;
        wanted.metadata.namespace = Some(self.namespace.clone());
        let params = PostParams::default();
        loop {
            match api.get_opt(&wanted.name_any()).await? {
                None => return Ok(api.create(&params, &wanted).await?),
                Some(live) => wanted.metadata.resource_version = live.metadata.resource_version,
            }
            match api.replace(&wanted.name_any(), &params, &wanted).await {
                // The operator writes the status at the same time; look again.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                answer => return Ok(answer?),
            }
        }
    }

    /// Creates an object of any kind with a regular plural, unless it is there already.
    pub async fn create(&self, object: &Value) -> anyhow::Result<()> {
        let wanted: DynamicObject = serde_json::from_value(object.clone())?;
        let types = wanted.types.as_ref().context("no apiVersion and kind")?;
        let resource = ApiResource::from_gvk(&types.try_into()?);
        match self.api(&resource).create(&PostParams::default(), &wanted).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            answer => Ok(answer.map(|_| ())?),
        }
    }

    pub async fn delete(&self, resource: &ApiResource, name: &str) -> anyhow::Result<()> {
        self.api(resource).delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    pub async fn list(&self, resource: &ApiResource) -> anyhow::Result<Vec<DynamicObject>> {
        match self.api(resource).list(&ListParams::default()).await {
            Ok(list) => Ok(list.items),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// As if the operator had let go of an object that it holds.
    pub async fn release(&self, resource: &ApiResource, name: &str) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        match self
            .api(resource)
            .patch(name, &PatchParams::default(), &patch)
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            answer => Ok(answer.map(|_| ())?),
        }
    }

    /// Starts the removal of the namespace; nobody waits for it.
    pub async fn done(self) -> anyhow::Result<()> {
        // No operator is left that would take its finalizers away.
        let models = crate::fixtures::model_resource();
        for model in self.list(&models).await? {
            self.release(&models, &model.name_any()).await?;
        }
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces
            .delete(&self.namespace, &DeleteParams::default())
            .await?;
        Ok(())
    }
}

/// The cluster behind a variable; nothing when it is unset or empty.
pub async fn config(variable: &str) -> anyhow::Result<Option<Config>> {
    // The first handshake would otherwise have to guess between crypto providers.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let Some(path) = std::env::var(variable).ok().filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let kubeconfig = Kubeconfig::read_from(&path).with_context(|| format!("{variable}={path}"))?;
    Ok(Some(
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?,
    ))
}

/// Our definitions, as a server of the tests takes them.
pub async fn install_crds(client: &Client) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for mut crd in gantry_crds::all() {
        gantry_crds::strip_for_old_servers(&mut crd);
        let name = crd.name_any();
        let body = gantry_crds::schema::manifest(&crd);
        api.patch(&name, &PatchParams::apply("e2e").force(), &Patch::Apply(&body))
            .await?;
        let established = await_condition(api.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(Duration::from_secs(30), established).await??;
    }
    Ok(())
}

/// The operator acts with the rights that the chart grants, and no others.
async fn operator_identity(client: &Client, admin: &Config) -> anyhow::Result<Config> {
    use gantry_operator::rbac;
    let params = PatchParams::apply("e2e").force();
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": OPERATOR}});
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
    accounts.patch(OPERATOR, &params, &Patch::Apply(&account)).await?;
    let rules = [
        rbac::namespaced(),
        rbac::cluster(),
        rbac::changes_endpoint(),
        rbac::whole_cluster(),
        rbac::own_namespace(),
    ]
    .concat();
    let api_version = "rbac.authorization.k8s.io/v1";
    let role = json!({"apiVersion": api_version, "kind": "ClusterRole", "metadata": {"name": OPERATOR}, "rules": rules});
    Api::<ClusterRole>::all(client.clone())
        .patch(OPERATOR, &params, &Patch::Apply(&role))
        .await?;
    let binding = json!({
        "apiVersion": api_version, "kind": "ClusterRoleBinding", "metadata": {"name": OPERATOR},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": OPERATOR},
        "subjects": [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": "default"}],
    });
    let bindings = Api::<ClusterRoleBinding>::all(client.clone());
    bindings.patch(OPERATOR, &params, &Patch::Apply(&binding)).await?;
    let request: TokenRequest = serde_json::from_value(json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "metadata": {}, "spec": {"audiences": [], "expirationSeconds": 7200},
    }))?;
    let answer = accounts
        .create_token_request(OPERATOR, &PostParams::default(), &request)
        .await?;
    let token = answer.status.context("no token")?.token;
    let mut config = admin.clone();
    config.auth_info = serde_json::from_value(json!({"token": token}))?;
    Ok(config)
}

/// Tries until it works, for 60 s; the last failure is the error.
pub async fn eventually<T>(attempt: impl AsyncFnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    eventually_for(Duration::from_secs(60), attempt).await
}

pub async fn eventually_for<T>(
    patience: Duration,
    mut attempt: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() > patience => {
                bail!("still not so after {} s: {error:#}", patience.as_secs());
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(150)).await,
        }
    }
}
