//! Packed charts: `crds/`, `templates/` and the charts inside, with limits on what an archive may unfold to.

use std::io::Read;

use anyhow::{Context as _, bail};

use super::{documents, source::File};

/// What one archive may hold when unpacked.
const MAX_UNPACKED: u64 = 256 << 20;
const MAX_ENTRY: u64 = 64 << 20;
const MAX_ENTRIES: usize = 20_000;
/// Charts inside charts.
const MAX_NESTED: usize = 4;

pub fn is_archive(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".tgz", ".tar.gz"].iter().any(|ending| name.ends_with(ending))
}

pub fn unpack(
    name: &str,
    bytes: &[u8],
    each: &mut dyn FnMut(File) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut left = MAX_UNPACKED;
    nested(name, bytes, MAX_NESTED, &mut left, each)
}

fn nested(
    name: &str,
    bytes: &[u8],
    depth: usize,
    left: &mut u64,
    each: &mut dyn FnMut(File) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if depth == 0 {
        bail!("{name} has charts nested too deeply");
    }
    // One byte more than allowed tells that there was more.
    let unpacked = flate2::read::MultiGzDecoder::new(bytes).take(*left + 1);
    let mut archive = tar::Archive::new(unpacked);
    let context = || format!("failed to unpack {name}");
    for (count, entry) in archive.entries().with_context(context)?.enumerate() {
        if count >= MAX_ENTRIES {
            bail!("{name} has more than {MAX_ENTRIES} files");
        }
        let entry = entry.with_context(context)?;
        let size = entry.size();
        if size > MAX_ENTRY || size > *left {
            bail!("{name} unfolds to more than it should");
        }
        *left -= size;
        let path = entry.path().with_context(context)?.to_string_lossy().into_owned();
        let Some(part) = part(&path) else { continue };
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let mut bytes = Vec::new();
        entry
            .take(MAX_ENTRY)
            .read_to_end(&mut bytes)
            .with_context(context)?;
        let path = format!("{name}:{path}");
        match part {
            Part::Chart => nested(&path, &bytes, depth - 1, left, each)?,
            Part::Plain | Part::Template => each(File {
                path,
                bytes,
                template: part == Part::Template,
            })?,
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Plain,
    Template,
    Chart,
}

/// What a file of an archive is to Helm. The first folder is the chart itself; `charts/NAME/` begins another one.
fn part(path: &str) -> Option<Part> {
    let mut folders = path.split('/').filter(|folder| *folder != ".").skip(1);
    loop {
        return match folders.next()? {
            "crds" if documents::may_hold(path) => Some(Part::Plain),
            "templates" if documents::may_hold(path) => Some(Part::Template),
            "charts" => match folders.next()? {
                archive if is_archive(archive) => Some(Part::Chart),
                _ => continue,
            },
            _ => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("x/crds/a.yaml", Some(Part::Plain))]
    #[case("x/templates/sub/a.yml", Some(Part::Template))]
    #[case("x/templates/_helpers.tpl", None)]
    #[case("x/charts/y/crds/a.json", Some(Part::Plain))]
    #[case("x/charts/y-1.2.3.tgz", Some(Part::Chart))]
    #[case("x/values.yaml", None)]
    #[case("x/files/a.yaml", None)]
    fn parts(#[case] path: &str, #[case] expected: Option<Part>) {
        assert_eq!(part(path), expected);
    }

    #[test]
    fn an_archive_that_is_none_is_refused() {
        assert!(unpack("x.tgz", b"no archive", &mut |_| Ok(())).is_err());
    }
}
