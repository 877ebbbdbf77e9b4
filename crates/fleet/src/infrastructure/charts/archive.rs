//! Packed charts: the files that can hold definitions, with limits on what an archive may unfold to. Nothing is written
//! to disk here, so names in the archive lead nowhere.

use std::io::Read;

use super::{ChartError, documents};

const MAX_UNPACKED: u64 = 256 << 20;
const MAX_ENTRY: u64 = 32 << 20;
const MAX_ENTRIES: usize = 20_000;
/// Charts inside charts.
const MAX_NESTED: usize = 4;

/// One file that may hold definitions, wherever it lay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub path: String,
    pub bytes: Vec<u8>,
    /// Of a chart's `templates`, where Go's template language may be mixed in.
    pub template: bool,
    /// Nothing by itself, but templates may read it: helpers, values and other files of the chart. Only those that speak of
    /// definitions are here.
    pub read_by_templates: bool,
}

pub fn is_archive(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    [".tgz", ".tar.gz"].iter().any(|ending| lower.ends_with(ending))
}

/// The files of a packed chart and of the charts inside it.
pub fn read(bytes: &[u8]) -> Result<Vec<File>, ChartError> {
    let mut files = Vec::new();
    visit(bytes, &mut |file| files.push(file))?;
    Ok(files)
}

/// The same, one at a time: all of them together may be large.
pub fn visit(bytes: &[u8], each: &mut dyn FnMut(File)) -> Result<(), ChartError> {
    let mut reader = Reader {
        left: MAX_UNPACKED,
        entries: 0,
        each,
        has_chart: false,
    };
    reader.archive("", bytes, MAX_NESTED)?;
    if !reader.has_chart {
        return Err(bad("it has no Chart.yaml"));
    }
    Ok(())
}

fn bad(why: &str) -> ChartError {
    ChartError::Archive(why.to_owned())
}

struct Reader<'e> {
    left: u64,
    entries: usize,
    each: &'e mut dyn FnMut(File),
    has_chart: bool,
}

impl Reader<'_> {
    fn archive(&mut self, within: &str, bytes: &[u8], depth: usize) -> Result<(), ChartError> {
        if depth == 0 {
            return Err(bad("it has charts nested too deeply"));
        }
        // What is read over counts as well: a bomb must not be unpacked only to be skipped.
        let unpacked = flate2::read::MultiGzDecoder::new(bytes).take(self.left + 1);
        let mut archive = tar::Archive::new(unpacked);
        for entry in archive.entries().map_err(|_| bad("it is not a packed chart"))? {
            let entry = entry.map_err(|_| bad("it is damaged, or no packed chart"))?;
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return Err(bad("it has too many files"));
            }
            let size = entry.size();
            if size > MAX_ENTRY || size > self.left {
                return Err(bad("it unfolds to more than a chart should"));
            }
            self.left -= size;
            let path = entry
                .path()
                .map_err(|_| bad("it has a file name that is none"))?
                .to_string_lossy()
                .into_owned();
            // Helm refuses such a chart; so whoever made it means no good.
            if path.starts_with('/') || path.split(['/', '\\']).any(|part| part == "..") {
                return Err(bad("it has a file that would be put outside of it"));
            }
            if !entry.header().entry_type().is_file() {
                if entry.header().entry_type().is_symlink() || entry.header().entry_type().is_hard_link() {
                    return Err(bad("it has links in it"));
                }
                continue;
            }
            let Some(part) = part(&path) else { continue };
            let mut content = Vec::new();
            entry
                .take(MAX_ENTRY)
                .read_to_end(&mut content)
                .map_err(|_| bad("it is damaged"))?;
            let path = format!("{within}{path}");
            match part {
                Part::Chart => self.has_chart = true,
                Part::Packed => self.archive(&format!("{path}:"), &content, depth - 1)?,
                Part::Plain | Part::Template | Part::Other => {
                    if let Some(file) = part.holds(path, content) {
                        (self.each)(file);
                    }
                }
            }
        }
        Ok(())
    }
}

/// What a file of a chart is to Helm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Chart,
    Plain,
    Template,
    Packed,
    Other,
}

impl Part {
    /// The file, if it may have definitions in it.
    pub fn holds(self, path: String, bytes: Vec<u8>) -> Option<File> {
        let file = File {
            path,
            bytes,
            template: self == Self::Template,
            read_by_templates: self == Self::Other,
        };
        (self != Self::Other || documents::may_define(&file)).then_some(file)
    }
}

/// What the file of this path is, packed or not. The first folder is the chart itself; `charts/NAME/` begins another one.
pub fn part(path: &str) -> Option<Part> {
    let holds = documents::may_hold(path);
    let mut folders = path.split('/').filter(|folder| *folder != ".").skip(1);
    loop {
        return match folders.next()? {
            "Chart.yaml" => Some(Part::Chart),
            "crds" if holds => Some(Part::Plain),
            "templates" if holds => Some(Part::Template),
            "crds" => None,
            "charts" => match folders.next()? {
                packed if is_archive(packed) => Some(Part::Packed),
                _ => continue,
            },
            folder if is_prose(path) || is_for_people(folder) => None,
            _ => Some(Part::Other),
        };
    }
}

/// For people; templates could read it, and do not.
fn is_prose(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    [".md", ".txt"].iter().any(|ending| lower.ends_with(ending))
}

/// Folders of a chart that show how it is used, or test it. What is in them is not installed with it.
fn is_for_people(folder: &str) -> bool {
    [
        "ci", "doc", "docs", "example", "examples", "sample", "samples", "test", "tests",
    ]
    .contains(&folder)
}

#[cfg(test)]
pub mod tests {
    use std::io::Write as _;

    use rstest::rstest;

    use super::*;

    /// A packed chart of these files.
    pub fn packed(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(flate2::write::GzEncoder::new(
            Vec::new(),
            flate2::Compression::fast(),
        ));
        for (path, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            // The crate refuses dangerous names; somebody else's would not.
            let name = path.as_bytes();
            header.as_old_mut().name[..name.len()].copy_from_slice(name);
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap()
    }

    #[test]
    fn definitions_templates_and_inner_charts_are_found() {
        let inner = packed(&[("y/Chart.yaml", b"name: y"), ("y/crds/b.yaml", b"b: 1")]);
        let chart = packed(&[
            ("x/Chart.yaml", b"name: x"),
            ("x/values.yaml", b"a: 1"),
            ("x/crds/a.yaml", b"a: 1"),
            ("x/templates/t.yaml", b"t: 1"),
            ("x/templates/_helpers.tpl", b"no"),
            ("x/files/f.yaml", b"kind: CustomResourceDefinition"),
            ("x/README.md", b"It has a CustomResourceDefinition."),
            ("x/charts/z/crds/c.yaml", b"c: 1"),
            ("x/charts/y-1.0.0.tgz", &inner),
        ]);
        let files = read(&chart).unwrap();
        let found: Vec<(&str, bool)> = files
            .iter()
            .map(|file| (file.path.as_str(), file.template))
            .collect();
        assert_eq!(
            found,
            [
                ("x/crds/a.yaml", false),
                ("x/templates/t.yaml", true),
                ("x/files/f.yaml", false),
                ("x/charts/z/crds/c.yaml", false),
                ("x/charts/y-1.0.0.tgz:y/crds/b.yaml", false),
            ]
        );
    }

    #[rstest]
    #[case("x/crds/a.yaml", Some(Part::Plain))]
    #[case("x/templates/sub/a.yml", Some(Part::Template))]
    #[case("x/templates/_helpers.tpl", Some(Part::Other))]
    #[case("x/templates/NOTES.txt", None)]
    #[case("x/charts/y/crds/a.json", Some(Part::Plain))]
    #[case("x/charts/y-1.2.3.tgz", Some(Part::Packed))]
    #[case("x/values.yaml", Some(Part::Other))]
    #[case("x/files/a.yaml", Some(Part::Other))]
    #[case("x/README.md", None)]
    #[case("x/examples/crd.yaml", None)]
    #[case("x/ci/crd-values.yaml", None)]
    #[case("x/charts/y/examples/crd.yaml", None)]
    #[case("x/templates/examples/crd.yaml", Some(Part::Template))]
    #[case("x/crds/examples/crd.yaml", Some(Part::Plain))]
    fn parts(#[case] path: &str, #[case] expected: Option<Part>) {
        assert_eq!(part(path), expected);
    }

    #[test]
    fn hostile_archives_are_refused() {
        let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let mut header = tar::Header::new_gnu();
        header.set_path("x/crds/a.yaml").unwrap();
        header.set_size(31 << 20);
        header.set_cksum();
        for _ in 0..12 {
            bomb.write_all(header.as_bytes()).unwrap();
            bomb.write_all(&vec![0; 31 << 20]).unwrap();
        }
        let bomb = bomb.finish().unwrap();
        assert!(bomb.len() < 1 << 20, "it is small while packed");
        let mut nested = packed(&[("x/Chart.yaml", b"")]);
        for _ in 0..6 {
            nested = packed(&[("x/Chart.yaml", b""), ("x/charts/x-1.tgz", &nested)]);
        }
        for (what, bytes) in [
            ("no archive", b"hello".to_vec()),
            ("nothing", Vec::new()),
            ("no chart", packed(&[("x/crds/a.yaml", b"a")])),
            (
                "outside",
                packed(&[("x/Chart.yaml", b""), ("../../etc/cron.d/x", b"a")]),
            ),
            (
                "absolute",
                packed(&[("x/Chart.yaml", b""), ("/etc/passwd", b"a")]),
            ),
            ("bomb", bomb),
            ("nested", nested),
        ] {
            assert!(read(&bytes).is_err(), "{what}");
        }
    }
}
