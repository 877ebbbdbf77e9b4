//! Where definitions and objects are read from: files, folders, charts, standard input. Clusters are `live`'s.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context as _, anyhow, bail};
use gantry_fleet::infrastructure::{
    charts::{
        archive::{self, File, Part},
        documents,
    },
    yaml::{self, Bounds},
};
use gantry_fleet_domain::crd_diff::{Crd, is_definition};
use serde_json::Value;

/// One file may be this large; a set of definitions is rarely more than a tenth of it.
pub const MAX_FILE: u64 = 64 << 20;
const MAX_FILES: usize = 20_000;
const MAX_FOLDERS_DEEP: usize = 32;

/// What OLD, NEW and --objects name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Path(PathBuf),
    Stdin,
    /// With the name of a context, or the current one.
    Cluster(Option<String>),
}

impl FromStr for Source {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.strip_prefix("cluster:") {
            Some("") => Self::Cluster(None),
            Some(context) => Self::Cluster(Some(context.to_owned())),
            None if text == "-" => Self::Stdin,
            None => Self::Path(text.into()),
        })
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Stdin => f.write_str("standard input"),
            Self::Cluster(None) => f.write_str("the current cluster"),
            Self::Cluster(Some(context)) => write!(f, "cluster {context}"),
        }
    }
}

/// A set of definitions, and where each was found.
#[derive(Debug, Default)]
pub struct Definitions {
    pub crds: Vec<Crd>,
    pub files: BTreeMap<String, String>,
    pub notes: Vec<String>,
}

impl Definitions {
    /// Takes a document if it is a definition. The first of a name counts, as when a chart ships one twice.
    pub fn take(&mut self, document: &Value, file: &str) {
        if !is_definition(document) {
            return;
        }
        match Crd::parse(document) {
            Ok(crd) if self.files.contains_key(&crd.name) => {
                let first = &self.files[&crd.name];
                self.notes.push(format!(
                    "{} is in {first} and in {file}; the first was taken",
                    crd.name
                ));
            }
            Ok(crd) => {
                self.files.insert(crd.name.clone(), file.to_owned());
                self.crds.push(crd);
            }
            Err(error) => self
                .notes
                .push(format!("a definition in {file} is not compared: {error}")),
        }
    }
}

/// Our own files may be larger than what strangers send.
const BOUNDS: Bounds = Bounds {
    bytes: MAX_FILE as usize,
    nodes: 4_000_000,
    ..yaml::CHART
};

/// The documents of a file, and what the user should know about them.
pub fn read(file: &File) -> anyhow::Result<(Vec<Value>, Vec<String>)> {
    if documents::is_templated(file) {
        return Ok(documents::approximate(file, BOUNDS));
    }
    let documents =
        documents::read(file, BOUNDS).map_err(|error| anyhow!("failed to read {}: it {error}", file.path))?;
    Ok((documents, Vec::new()))
}

/// All definitions of a file, folder, chart or standard input.
pub fn definitions(source: &Source) -> anyhow::Result<Definitions> {
    let mut found = Definitions::default();
    visit(source, &mut |file| {
        let (documents, notes) = read(&file)?;
        found.notes.extend(notes);
        for document in documents {
            found.take(&document, &file.path);
        }
        Ok(())
    })?;
    if found.crds.is_empty() {
        bail!("{source} has no custom resource definition");
    }
    Ok(found)
}

/// Hands over every file that may hold documents, one at a time.
pub fn visit(source: &Source, each: &mut dyn FnMut(File) -> anyhow::Result<()>) -> anyhow::Result<()> {
    match source {
        Source::Cluster(_) => bail!("{source} has no files"),
        Source::Stdin => {
            let mut bytes = Vec::new();
            let size = std::io::stdin().take(MAX_FILE + 1).read_to_end(&mut bytes)?;
            if size as u64 > MAX_FILE {
                bail!("standard input is larger than {} MB", MAX_FILE >> 20);
            }
            each(File {
                path: "standard input".to_owned(),
                bytes,
                template: false,
                read_by_templates: false,
            })
        }
        Source::Path(path) => {
            let about = fs::metadata(path).with_context(|| format!("failed to read {}", path.display()))?;
            if about.is_dir() {
                let mut left = MAX_FILES;
                folder(path, None, MAX_FOLDERS_DEEP, &mut left, each)
            } else {
                file(path, each)
            }
        }
    }
}

/// A folder, or one that is inside of a chart, by its path there: that is read as the packed chart is.
fn folder(
    path: &Path,
    in_chart: Option<&str>,
    depth: usize,
    left: &mut usize,
    each: &mut dyn FnMut(File) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if depth == 0 {
        bail!("{} is nested too deeply", path.display());
    }
    let is_chart = path.join("Chart.yaml").is_file();
    let in_chart = in_chart.or(is_chart.then_some("chart"));
    let mut entries: Vec<PathBuf> = fs::read_dir(path)
        .with_context(|| format!("failed to list {}", path.display()))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    entries.sort();
    for entry in entries {
        let name = entry
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let kind = fs::symlink_metadata(&entry)?.file_type();
        let inside = in_chart.map(|chart| format!("{chart}/{name}"));
        if kind.is_dir() {
            if !name.starts_with('.') {
                folder(&entry, inside.as_deref(), depth - 1, left, each)?;
            }
            continue;
        }
        let part = inside.as_deref().and_then(archive::part);
        let wanted = match (&inside, part) {
            (None, _) => documents::may_hold_or_pack(&name),
            (Some(_), part) => part.is_some_and(|part| part != Part::Chart),
        };
        if !wanted {
            continue;
        }
        if *left == 0 {
            bail!("more than {MAX_FILES} files");
        }
        *left -= 1;
        match part {
            None | Some(Part::Packed) => file(&entry, each)?,
            Some(part) => {
                if let Some(file) = part.holds(entry.display().to_string(), bytes(&entry)?) {
                    each(file)?;
                }
            }
        }
    }
    Ok(())
}

fn bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    let context = || format!("failed to read {}", path.display());
    let size = fs::metadata(path).with_context(context)?.len();
    if size > MAX_FILE {
        bail!("{} is larger than {} MB", path.display(), MAX_FILE >> 20);
    }
    fs::read(path).with_context(context)
}

/// A file by itself, or a packed chart.
fn file(path: &Path, each: &mut dyn FnMut(File) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let name = path.display().to_string();
    let bytes = bytes(path)?;
    if archive::is_archive(&name) {
        let files = archive::read(&bytes).map_err(|error| anyhow!("{name}: {error}"))?;
        for file in files {
            each(File {
                path: format!("{name}:{}", file.path),
                ..file
            })?;
        }
        return Ok(());
    }
    each(File {
        path: name,
        bytes,
        template: false,
        read_by_templates: false,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::Source;

    #[rstest]
    #[case("cluster:", Source::Cluster(None))]
    #[case("cluster:prod", Source::Cluster(Some("prod".to_owned())))]
    #[case("-", Source::Stdin)]
    #[case("charts/x.tgz", Source::Path("charts/x.tgz".into()))]
    fn what_is_meant(#[case] text: &str, #[case] source: Source) {
        assert_eq!(text.parse::<Source>().unwrap(), source);
    }
}
