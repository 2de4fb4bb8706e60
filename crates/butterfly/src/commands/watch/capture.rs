//! `butterfly capture`.

use super::rounds::{Until, filter, target, target_words};
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::option;
use crate::line::reader::Arguments;
use crate::text::table::counted;
use crate::tree::Node;
use butterfly_api::proto::{CaptureReq, CaptureRes, Request, capture_req::Start};
use clap::Command;
use protobuf::MessageField;
use std::fs::File;
use std::io::{IsTerminal, Write};

/// `capture`.
pub fn node() -> Node {
    Node::run(
        Command::new("capture")
            .about("Writes packets as a pcapng file whose comments tell what became of each: of one NIC, one network or all. Ctrl-C ends it.")
            .args(target_words())
            .arg(option("write", "FILE").short('w').required(true).help("the file; -: standard output"))
            .arg(option("count", "N").help("end when so many packets are written, or a few more"))
            .arg(option("seconds", "S").help("end after so many seconds"))
            .arg(option("snap", "BYTES").help("keep so many bytes of each packet (default: 65535)"))
            .after_help(
                "butterfly capture vm-1 -w vm-1.pcapng\n\
                 butterfly capture vm-1 tcp port 443 -w - | tshark -r - -V",
            ),
        run,
    )
}

fn run(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    session.output_is_for_programs();
    let until = Until::read(arguments)?;
    let path = arguments.value("write").unwrap_or("-");
    if path == "-" && std::io::stdout().is_terminal() {
        return Err(Failure::said(
            "standard output is a terminal, and packets are no text: name a file, or pipe it into tshark -r -",
        ));
    }
    let start = Start {
        target: MessageField::some(target(arguments)),
        filter: filter(arguments),
        snap_length: arguments.parsed("snap", "a number of bytes")?,
        ..Start::default()
    };
    let started =
        ask(session, CaptureReq { start: MessageField::some(start), ..CaptureReq::default() })?;
    let number = started.capture();
    let mut file = match path {
        "-" => None,
        path => {
            let failed = |error| Failure::said(format!("cannot write {path}: {error}"));
            Some(File::create(path).map_err(failed)?)
        }
    };
    let mut packets = 0;
    while !until.is_over(packets) {
        let told = ask(session, CaptureReq { read: Some(number), ..CaptureReq::default() })?;
        packets = told.packets();
        if told.data().is_empty() {
            until.pause();
        }
        write(session, &mut file, path, told.data())?;
    }
    let told = loop {
        let told = ask(session, CaptureReq { stop: Some(number), ..CaptureReq::default() })?;
        write(session, &mut file, path, told.data())?;
        if !told.more() {
            break told;
        }
    };
    session.remark(&format!(
        "{} written; {} lost because the daemon or this program was too slow",
        counted(told.packets(), "packet"),
        told.lost()
    ));
    Ok(())
}

fn write(
    session: &mut Session,
    file: &mut Option<File>,
    path: &str,
    data: &[u8],
) -> Result<(), Failure> {
    match file {
        Some(file) => file
            .write_all(data)
            .map_err(|error| Failure::said(format!("cannot write {path}: {error}"))),
        None => session.bytes(data),
    }
}

fn ask(session: &mut Session, request: CaptureReq) -> Result<CaptureRes, Failure> {
    let response =
        session.ask(Request { capture: MessageField::some(request), ..Request::default() })?;
    response.capture.into_option().ok_or_else(|| Failure::said("no capture received"))
}
