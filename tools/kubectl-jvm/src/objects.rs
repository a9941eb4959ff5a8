//! Objects of the API server, as far as the plugin needs them. All texts are foreign: [`crate::grammar`] checks each
//! one before it is used, and [`crate::clean`] escapes those that are printed.

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::grammar::{LabelKey, LabelValue};

/// Maximum number of requirements of a workload's selector.
const MAX_REQUIREMENTS: usize = 100;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Pod {
    pub metadata: Metadata,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodList {
    pub items: Vec<Pod>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub name: String,
    pub uid: String,
    pub creation_timestamp: Option<String>,
    pub deletion_timestamp: Option<String>,
    pub annotations: Option<Annotations>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Annotations {
    /// The container that kubectl chooses by default.
    #[serde(rename = "kubectl.kubernetes.io/default-container")]
    pub default_container: Option<String>,
    /// The UID by which the kubelet knows a static pod.
    #[serde(rename = "kubernetes.io/config.mirror")]
    pub mirror: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodSpec {
    pub node_name: Option<String>,
    pub containers: Option<Vec<Container>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Container {
    pub name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodStatus {
    pub phase: Option<String>,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub container_statuses: Option<Vec<ContainerStatus>>,
    pub init_container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ContainerStatus {
    pub name: String,
    #[serde(rename = "containerID")]
    pub container_id: Option<String>,
    pub state: Option<State>,
    pub last_state: Option<State>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct State {
    pub running: Option<serde::de::IgnoredAny>,
    pub waiting: Option<Waiting>,
    pub terminated: Option<Terminated>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Waiting {
    pub reason: Option<String>,
    pub message: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Terminated {
    #[serde(rename = "containerID")]
    pub container_id: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Workload {
    spec: WorkloadSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WorkloadSpec {
    selector: Option<Selector>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Selector {
    match_labels: Option<std::collections::BTreeMap<String, String>>,
    match_expressions: Option<Vec<Expression>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Expression {
    key: String,
    operator: String,
    values: Option<Vec<String>>,
}

/// Parses an answer of kubectl.
///
/// # Errors
/// If it does not have the expected form.
pub(crate) fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T> {
    serde_json::from_slice(json).context("cannot parse the answer of kubectl")
}

impl Workload {
    /// Returns the selector of the workload's pods, in the form of kubectl's option.
    ///
    /// # Errors
    /// If a key or a value is none of a label, or if nothing is selected.
    pub(crate) fn selector(&self) -> Result<String> {
        let none = Selector::default();
        let selector = self.spec.selector.as_ref().unwrap_or(&none);
        let mut requirements = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten().take(MAX_REQUIREMENTS + 1) {
            let key = LabelKey::new("a key of spec.selector.matchLabels", key)?;
            let value = LabelValue::new("a value of spec.selector.matchLabels", value)?;
            requirements.push(format!("{key}={value}"));
        }
        for expression in selector.match_expressions.iter().flatten().take(MAX_REQUIREMENTS + 1) {
            requirements.push(expression.requirement()?);
        }
        if requirements.is_empty() || requirements.len() > MAX_REQUIREMENTS {
            bail!(
                "spec.selector has {} requirements, but expected 1 to {MAX_REQUIREMENTS}",
                requirements.len()
            );
        }
        Ok(requirements.join(","))
    }
}

impl Expression {
    fn requirement(&self) -> Result<String> {
        let key = LabelKey::new("a key of spec.selector.matchExpressions", &self.key)?;
        let values = || {
            let values = self.values.iter().flatten().take(MAX_REQUIREMENTS);
            let values = values
                .map(|value| LabelValue::new("a value of spec.selector.matchExpressions", value));
            let values = values.map(|value| Ok(value?.to_string())).collect::<Result<Vec<_>>>()?;
            Ok::<_, anyhow::Error>(values.join(","))
        };
        Ok(match self.operator.as_str() {
            "In" => format!("{key} in ({})", values()?),
            "NotIn" => format!("{key} notin ({})", values()?),
            "Exists" => key.to_string(),
            "DoesNotExist" => format!("!{key}"),
            other => bail!(
                "an operator of spec.selector.matchExpressions is {}, but expected In, NotIn, Exists or DoesNotExist",
                crate::clean::quote(other)
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selector(selector: serde_json::Value) -> Result<String> {
        let json = json!({"spec": {"selector": selector}}).to_string();
        parse::<Workload>(json.as_bytes())?.selector()
    }

    #[test]
    fn selector_of_a_workload_has_all_requirements() {
        let text = selector(json!({
            "matchLabels": {"app": "shop", "example.com/tier": ""},
            "matchExpressions": [
                {"key": "a", "operator": "In", "values": ["x", "y"]},
                {"key": "b", "operator": "NotIn", "values": ["z"]},
                {"key": "c", "operator": "Exists"},
                {"key": "d", "operator": "DoesNotExist"},
            ],
        }));
        assert_eq!(text.unwrap(), "app=shop,example.com/tier=,a in (x,y),b notin (z),c,!d");
        for hostile in [
            json!({"matchLabels": {"app": "shop,other=x"}}),
            json!({"matchLabels": {"app": "shop\n"}}),
            json!({"matchLabels": {"--all": "x"}}),
            json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["x),b"]}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "Other\n"}]}),
            json!({}),
            json!(null),
        ] {
            let error = selector(hostile.clone()).unwrap_err().to_string();
            assert!(error.contains("spec.selector") && !error.contains('\n'), "{hostile}: {error}");
        }
    }
}
