//! A server in the process of its test, asked over a connection.

#[path = "../wire/mod.rs"]
mod wire;

mod administration;
mod command_page;
mod count;
mod durability;
mod golden;
mod isolation;
mod keyspace;
mod leadership;
mod lifecycle;
mod limits;
mod malformed;
mod observation;
mod output_limit;
mod random;
mod range;
mod slices;
mod upstream;
