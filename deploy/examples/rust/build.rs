//! Makes the client's stubs from the contract, `proto/` of the tree.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let contract = "../../../proto";
    let files = ["certification.proto", "error.proto", "store.proto"];
    let paths = files.map(|name| format!("{contract}/groupcert/v1/{name}"));
    let described = protox::compile(&paths, [contract])?;
    tonic_prost_build::configure()
        .build_server(false)
        .compile_fds(described)?;
    println!("cargo:rerun-if-changed={contract}");
    Ok(())
}
