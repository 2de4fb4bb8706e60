use super::*;

fn copy(of: &BlackBox) -> OwnedFd {
    of.file().unwrap().try_clone_to_owned().unwrap()
}

#[test]
fn a_successor_reads_what_was_noted() {
    let made = BlackBox::create(7).unwrap();
    made.name(0, "a").unwrap();
    made.name(NUMBERS - 1, &"z".repeat(NAME)).unwrap();
    let notes = read(copy(&made)).unwrap();
    assert_eq!((notes.term, notes.ready, notes.degraded), (7, None, false));
    assert_eq!((notes.cause, notes.blamed), (None, None));
    made.is_ready(true);
    let line = made.line(3);
    line.serve(0);
    line.write(NUMBERS - 1);
    assert!(line.is_serving());
    let notes = read(copy(&made)).unwrap();
    assert!(notes.degraded && notes.ready.is_some_and(|ready| ready <= notes.alive));
    assert_eq!(notes.blamed, None, "it was killed");
    line.ended(Cause::Signal(11));
    line.ended(Cause::Panic);
    made.ended(Cause::Signal(11));
    let notes = read(copy(&made)).unwrap();
    let blamed = Blamed {
        cause: Cause::Signal(11),
        served: Side::Vnic("a".into()),
        written: Side::Vnic("z".repeat(NAME)),
    };
    assert_eq!((notes.cause, notes.blamed), (Some(Cause::Signal(11)), Some(blamed)));
}

#[test]
fn every_side_is_told() {
    let made = BlackBox::create(1).unwrap();
    made.name(5, "b").unwrap();
    let line = made.line(0);
    line.ended(Cause::Stuck);
    let sides = || {
        let blamed = read(copy(&made)).unwrap().blamed.unwrap();
        (blamed.served, blamed.written)
    };
    line.serve_uplink();
    assert_eq!(sides(), (Side::Uplink, Side::Nobody));
    line.write(5);
    assert_eq!(sides(), (Side::Uplink, Side::Vnic("b".into())));
    line.written();
    assert_eq!(sides(), (Side::Uplink, Side::Nobody));
    line.serve_own();
    assert_eq!(sides(), (Side::Switch, Side::Nobody));
    // One without a name, as it was never declared.
    line.serve(6);
    assert_eq!(sides(), (Side::Nobody, Side::Nobody));
    line.serve(5);
    line.rest();
    assert_eq!(sides(), (Side::Nobody, Side::Nobody));
    made.name(5, &"x".repeat(NAME + 1)).unwrap();
    line.serve(5);
    assert_eq!(sides(), (Side::Nobody, Side::Nobody), "too long to be kept");
}

#[test]
fn nothing_is_believed() {
    let made = BlackBox::create(1).unwrap();
    made.line(0).ended(Cause::Panic);
    made.line(0).serve(9);
    let put = |at: u64, bytes: &[u8]| {
        rustix::io::pwrite(made.file().unwrap(), bytes, at).unwrap();
        read(copy(&made))
    };
    // A name of another length, no text, or changed since.
    for (at, bytes) in [(8, &[255u8; 4][..]), (8, &[5, 0, 0, 0]), (12, &[0xff]), (12, b"other")] {
        made.name(9, "name").unwrap();
        let notes = put(PAGE as u64 + 9 * RECORD as u64 + at, bytes).unwrap();
        assert_eq!(notes.blamed.unwrap().served, Side::Nobody);
    }
    // A port beyond the last one, and a cause that there is not.
    let notes = put(64, &(NUMBERS + 2).to_ne_bytes()).unwrap();
    assert_eq!(notes.blamed.unwrap().served, Side::Nobody);
    assert_eq!(put(72, &[9, 9, 0, 0]).unwrap().blamed, None);
    assert_eq!(put(40, &[0xff; 8]).unwrap().cause, None);
    // Ready after its end.
    assert!(put(16, &[0xff; 8]).is_err());
    assert!(put(0, &[0; 8]).is_err());
    let small = memfd_create("small", MemfdFlags::CLOEXEC).unwrap();
    assert!(read(small).is_err());
    let random = memfd_create("random", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&random, SIZE).unwrap();
    assert!(read(random).is_err());
}
