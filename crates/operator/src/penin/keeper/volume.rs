//! The files of a copy: only ever appended to, and on the disk before anybody is told.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Write as _},
    path::{Path, PathBuf},
};

use super::copy::{Copy, Due};

/// Names of the files in the folder of a copy.
pub const ENTRIES: &str = "changes.jsonl";
pub const HEADS: &str = "heads.jsonl";
pub const KEY: &str = "public-key.pem";

/// A folder that this process alone appends to.
pub struct Volume {
    folder: PathBuf,
    entries: File,
    heads: File,
}

impl Volume {
    /// Makes what is missing.
    pub fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let append = |name: &str| {
            OpenOptions::new()
                .append(true)
                .create(true)
                .open(folder.join(name))
        };
        let volume = Self {
            entries: append(ENTRIES)?,
            heads: append(HEADS)?,
            folder: folder.to_owned(),
        };
        match volume.entries.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let message = "another process appends to it: wait until that has ended";
                return Err(io::Error::new(ErrorKind::ResourceBusy, message));
            }
            // Some network file systems have no locks; one pod at a time is then all that there is.
            Err(TryLockError::Error(error)) => {
                tracing::warn!(%error, "the copy cannot be locked");
            }
            Ok(()) => {}
        }
        // The names of new files have to be on the disk as well.
        File::open(folder)?.sync_all()?;
        if let Some(parent) = folder.parent() {
            File::open(parent)?.sync_all()?;
        }
        Ok(volume)
    }

    pub fn read(&self) -> io::Result<Copy> {
        read(&self.folder)
    }

    /// The key, then entries, then heads: a head that is there proves entries that are there.
    pub fn append(&mut self, due: &Due) -> io::Result<()> {
        if let Some(key) = &due.key {
            let draft = self.folder.join(format!("{KEY}.new"));
            let mut file = File::create(&draft)?;
            file.write_all(key.as_bytes())?;
            file.sync_all()?;
            fs::rename(draft, self.folder.join(KEY))?;
            File::open(&self.folder)?.sync_all()?;
        }
        let (entries, heads) = (due.entries.as_slice(), due.heads.as_bytes());
        for (file, text) in [(&mut self.entries, entries), (&mut self.heads, heads)] {
            if !text.is_empty() {
                file.write_all(text)?;
                file.sync_all()?;
            }
        }
        Ok(())
    }
}

/// Reads a copy; a file that is not there is empty.
pub fn read(folder: &Path) -> io::Result<Copy> {
    let bytes = |name: &str| match fs::read(folder.join(name)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Copy {
        entries: bytes(ENTRIES)?.unwrap_or_default(),
        heads: bytes(HEADS)?.map(text).unwrap_or_default(),
        key: bytes(KEY)?.map(text),
    })
}

/// What a failure means to a person, with the cure.
pub fn words(error: &io::Error) -> String {
    let cure = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "the volume is full: make storage.wormLedger.size larger; until then the ConfigMaps keep what is not copied"
        }
        ErrorKind::ReadOnlyFilesystem => {
            "the volume is read-only: look at the events of its pods and at the disk behind it"
        }
        ErrorKind::PermissionDenied => {
            "this user may not write there: let services.omegaMeta.podSpec.securityContext name a user or fsGroup that may"
        }
        // Its own words say it.
        ErrorKind::ResourceBusy => return error.to_string(),
        _ => "look at the volume",
    };
    format!("{error}: {cure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(entries: &str, heads: &str) -> Due {
        Due {
            key: None,
            entries: entries.into(),
            heads: heads.into(),
        }
    }

    #[test]
    fn what_is_appended_is_read_by_the_next_process() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("deep/er");
        let mut volume = Volume::open(&folder).unwrap();
        assert_eq!(volume.read().unwrap(), Copy::default());
        let first = Due {
            key: Some("K".into()),
            ..due("a\n", "h")
        };
        volume.append(&first).unwrap();
        let busy = Volume::open(&folder).err().unwrap();
        assert!(busy.to_string().contains("another process"), "{busy}");
        drop(volume);
        let mut volume = Volume::open(&folder).unwrap();
        volume.append(&due("b\n", "i\n")).unwrap();
        let expected = Copy {
            entries: b"a\nb\n".to_vec(),
            heads: "hi\n".into(),
            key: Some("K".into()),
        };
        assert_eq!(volume.read().unwrap(), expected);
    }

    /// The kernel's own full disk.
    #[test]
    fn a_full_disk_is_called_by_its_name() {
        let home = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", home.path().join(ENTRIES)).unwrap();
        let mut volume = Volume::open(home.path()).unwrap();
        let said = words(&volume.append(&due("a\n", "h\n")).unwrap_err());
        assert!(said.contains("storage.wormLedger.size"), "{said}");
        assert_eq!(
            fs::read(home.path().join(HEADS)).unwrap(),
            b"",
            "no head of what is not there"
        );
    }

    #[test]
    fn a_place_that_cannot_be_written_is_said() {
        let said = words(&Volume::open(Path::new("/proc/none/x")).err().unwrap());
        assert!(said.contains("look at"), "{said}");
        let said = words(&io::Error::from(ErrorKind::ReadOnlyFilesystem));
        assert!(said.contains("read-only"), "{said}");
    }
}
