//! A file of events, of which each worker reads its share of the blocks; `apps/nexmark/src/file.rs` has the format.
//!
//! Texts stay in the block, so a column that no query uses costs next to nothing.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

pub enum Event<'a> {
    Person(Person<'a>),
    Auction(Auction<'a>),
    Bid(Bid<'a>),
}

/// A person, without the columns that no query uses.
pub struct Person<'a> {
    pub id: u64,
    pub name: &'a str,
    pub city: &'a str,
    pub state: &'a str,
    pub date_time: i64,
}

/// Times are milliseconds since 1970.
pub struct Auction<'a> {
    pub id: u64,
    pub item_name: &'a str,
    pub description: &'a str,
    pub initial_bid: u64,
    pub reserve: u64,
    pub date_time: i64,
    pub expires: i64,
    pub seller: u64,
    pub category: u64,
    pub extra: &'a str,
}

pub struct Bid<'a> {
    pub auction: u64,
    pub bidder: u64,
    pub price: u64,
    pub channel: &'a str,
    pub url: &'a str,
    pub date_time: i64,
    pub extra: &'a str,
}

impl<'a> Event<'a> {
    pub fn person(&self) -> Option<&Person<'a>> {
        match self {
            Event::Person(person) => Some(person),
            _ => None,
        }
    }

    pub fn auction(&self) -> Option<&Auction<'a>> {
        match self {
            Event::Auction(auction) => Some(auction),
            _ => None,
        }
    }

    pub fn bid(&self) -> Option<&Bid<'a>> {
        match self {
            Event::Bid(bid) => Some(bid),
            _ => None,
        }
    }
}

/// A share of the blocks of a file.
pub struct Share {
    file: File,
    file_bytes: u64,
    /// The begin of the next block.
    next: u64,
    /// The blocks of other shares before the next one of this share.
    others: usize,
    shares: usize,
    block: Vec<u8>,
}

impl Share {
    pub fn open(path: &Path, index: usize, shares: usize) -> io::Result<Share> {
        let file = File::open(path)?;
        let mut share = Share {
            file_bytes: file.metadata()?.len(),
            file,
            next: 0,
            others: index,
            shares,
            block: Vec::new(),
        };
        share.skip()?;
        Ok(share)
    }

    pub fn has_ended(&self) -> bool {
        self.next >= self.file_bytes
    }

    /// Reads blocks until they have this number of events, or until the end.
    pub fn read(&mut self, events: usize, mut each: impl FnMut(&Event<'_>)) -> io::Result<()> {
        let mut read = 0;
        while read < events && !self.has_ended() {
            self.block.resize(self.block_bytes()?, 0);
            self.file.read_exact_at(&mut self.block, self.next + 4)?;
            self.next += 4 + self.block.len() as u64;
            self.others = self.shares - 1;
            let mut rest = Rest(&self.block);
            while !rest.0.is_empty() {
                each(&rest.event()?);
                read += 1;
            }
            self.skip()?;
        }
        Ok(())
    }

    /// Goes on to the next block of this share.
    fn skip(&mut self) -> io::Result<()> {
        while self.others > 0 && !self.has_ended() {
            self.next += 4 + self.block_bytes()? as u64;
            self.others -= 1;
        }
        Ok(())
    }

    fn block_bytes(&self) -> io::Result<usize> {
        let mut length = [0; 4];
        self.file.read_exact_at(&mut length, self.next)?;
        Ok(u32::from_le_bytes(length) as usize)
    }
}

/// The part of a block that is not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn event(&mut self) -> io::Result<Event<'a>> {
        // A record's fields are read in the order in which they are written here.
        Ok(match self.number()? {
            0 => {
                let (id, name) = (self.number()?, self.text()?);
                let (_email_address, _credit_card) = (self.text()?, self.text()?);
                let person = Person {
                    id,
                    name,
                    city: self.text()?,
                    state: self.text()?,
                    date_time: self.time()?,
                };
                let _extra = self.text()?;
                Event::Person(person)
            }
            1 => Event::Auction(Auction {
                id: self.number()?,
                item_name: self.text()?,
                description: self.text()?,
                initial_bid: self.number()?,
                reserve: self.number()?,
                date_time: self.time()?,
                expires: self.time()?,
                seller: self.number()?,
                category: self.number()?,
                extra: self.text()?,
            }),
            _ => Event::Bid(Bid {
                auction: self.number()?,
                bidder: self.number()?,
                price: self.number()?,
                channel: self.text()?,
                url: self.text()?,
                date_time: self.time()?,
                extra: self.text()?,
            }),
        })
    }

    /// Seven bits in a byte, the lowest first.
    fn number(&mut self) -> io::Result<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let [bits] = *self.bytes(1)? else { break };
            number |= u64::from(bits & 0x7f) << shift;
            if bits < 0x80 {
                return Ok(number);
            }
        }
        Err(io::Error::other("a number has more than 64 bits"))
    }

    fn time(&mut self) -> io::Result<i64> {
        let zigzag = self.number()?;
        Ok((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
    }

    fn text(&mut self) -> io::Result<&'a str> {
        let length = self.number()? as usize;
        str::from_utf8(self.bytes(length)?).map_err(io::Error::other)
    }

    fn bytes(&mut self, count: usize) -> io::Result<&'a [u8]> {
        let split = self.0.split_at_checked(count);
        let (bytes, rest) =
            split.ok_or_else(|| io::Error::other("a block ends within an event"))?;
        self.0 = rest;
        Ok(bytes)
    }
}
