//! Outputs are there whole or not at all.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{self, Write};

use lacuna_data::Error;
use lacuna_data::output::{IfExists, NewFolder, write_file};

#[test]
fn a_file_that_fails_half_way_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    let fail = |if_exists| {
        write_file(&path, if_exists, |out| {
            out.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        })
    };
    assert!(matches!(fail(IfExists::Refuse), Err(Error::Write { .. })));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);

    write_file(&path, IfExists::Refuse, |out| out.write_all(b"old")).unwrap();
    assert!(matches!(fail(IfExists::Replace), Err(Error::Write { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"old");
    let refused = write_file(&path, IfExists::Refuse, |out| out.write_all(b"new"));
    assert!(matches!(refused, Err(Error::Exists { .. })));
    write_file(&path, IfExists::Replace, |out| out.write_all(b"new")).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_folder_appears_when_it_is_finished() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("data");
    let fill = |text: &str, if_exists| {
        let new = NewFolder::create(&path, if_exists)?;
        fs::write(new.path().join("a.txt"), text).unwrap();
        Ok::<_, Error>(new)
    };
    drop(fill("given up", IfExists::Refuse).unwrap());
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);

    let new = fill("first", IfExists::Refuse).unwrap();
    assert!(!path.exists());
    new.finish().unwrap();
    assert_eq!(fs::read_to_string(path.join("a.txt")).unwrap(), "first");
    assert!(matches!(fill("second", IfExists::Refuse), Err(Error::Exists { .. })));
    assert!(matches!(fill("second", IfExists::Replace).map(drop), Ok(())));
    fs::write(path.join("left over.txt"), "x").unwrap();
    fill("third", IfExists::Replace).unwrap().finish().unwrap();
    assert_eq!(fs::read_to_string(path.join("a.txt")).unwrap(), "third");
    assert!(!path.join("left over.txt").exists());
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
}

#[cfg(unix)]
#[test]
fn outputs_have_ordinary_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
    fs::write(folder.path().join("ordinary"), "").unwrap();
    write_file(&folder.path().join("ours"), IfExists::Refuse, |_| Ok(())).unwrap();
    assert_eq!(mode("ours"), mode("ordinary"));
    fs::create_dir(folder.path().join("ordinary folder")).unwrap();
    NewFolder::create(&folder.path().join("our folder"), IfExists::Refuse).unwrap().finish().unwrap();
    assert_eq!(mode("our folder"), mode("ordinary folder"));
}

#[test]
fn a_place_that_does_not_exist_is_an_error() {
    let path = std::path::Path::new("no/such/folder/out.json");
    let error = write_file(path, IfExists::Refuse, |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("no/such/folder/out.json"));
    assert!(error.hint().unwrap().contains("does not exist"));
}

#[cfg(unix)]
#[test]
fn devices_and_links_to_folders_are_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let null = write_file(std::path::Path::new("/dev/null"), IfExists::Replace, |_| Ok(()));
    assert!(matches!(null, Err(Error::Write { .. })));
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("/", &link).unwrap();
    assert!(NewFolder::create(&link, IfExists::Replace).is_err());
}

#[test]
fn one_place_has_many_names() {
    use lacuna_data::output::is_within;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("sub")).unwrap();
    assert!(is_within(&path("x.json"), &path("sub/../x.json")));
    assert!(is_within(&path("sub"), &path("./sub/")));
    assert!(is_within(&path("sub/new/x.json"), &path("sub/../sub/new")));
    assert!(!is_within(&path("x.json"), &path("y.json")));
    assert!(!is_within(&path("x.json"), &path("x")) && !is_within(&path("sub"), &path("sub/new")));
}

#[test]
fn outputs_replace_neither_inputs_nor_one_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("sub")).unwrap();
    fs::write(path("sub/in.json"), "").unwrap();
    let check = |outputs: &[&str]| {
        let outputs: Vec<_> = outputs.iter().map(|name| path(name)).collect();
        let outputs: Vec<_> = outputs.iter().map(std::path::PathBuf::as_path).collect();
        IfExists::Replace.check_all(&outputs, &[&path("sub/in.json")])
    };
    assert!(check(&["out.json", "sub/out.json", "sub/other"]).is_ok());
    for replaces in ["sub/in.json", "sub/../sub/in.json", "sub"] {
        assert!(matches!(check(&["out.json", replaces]), Err(Error::ReplacesInput { .. })), "{replaces}");
    }
    for outputs in [["out", "out"], ["sub/out", "sub/out/more.json"], ["sub/out/more.json", "sub/out"]] {
        assert!(check(&outputs).is_err(), "{outputs:?}");
    }
}
