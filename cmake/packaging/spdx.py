# Writes the list of what the files of a release contain, as SPDX 2.3 in JSON.
# SPDX-License-Identifier: Apache-2.0
import hashlib
import json
import re
import time
from pathlib import Path

import wheel

NVIDIA = "LicenseRef-NVIDIA-CUDA-EULA"
OWN = "Apache-2.0"


def digest(kind, data):
    return hashlib.new(kind, data).hexdigest()


def found(path, expression):
    """Returns what the expression's groups match in a file, joined by points; NOASSERTION if there is no such text."""
    path = Path(path)
    match = re.search(expression, path.read_text(errors="replace"), re.S) if path.is_file() else None
    return ".".join(match.groups()) if match else "NOASSERTION"


def first_with(folders, name):
    """Returns the path of the first folder's file of this name; otherwise one that does not exist."""
    paths = [Path(folder) / name for folder in folders if folder]
    return next((path for path in paths if path.is_file()), Path("/nonexistent"))


def components(build):
    """Yields (name, version, licence) of the foreign parts that the binaries contain."""
    known = wheel.cache(build)
    include = ("/usr/include", "/usr/local/include")
    cccl = known.get("GPUMEM_CCCL_INCLUDE_DIR", "")
    cuda = known.get("GPUMEM_CUDA_INCLUDE_DIR", "")
    number = found(f"{cccl}/cuda/std/__cccl/version.h", r"#\s*define CCCL_VERSION (\d+)")
    if number.isdigit():
        number = f"{int(number) // 1000000}.{int(number) // 1000 % 1000}.{int(number) % 1000}"
    yield "CCCL", number, "Apache-2.0 WITH LLVM-exception"
    runtime = found(f"{cuda}/cuda_runtime_api.h", r"#define CUDART_VERSION\s+(\d+)")
    if runtime.isdigit():
        runtime = f"{int(runtime) // 1000}.{int(runtime) % 1000 // 10}"
    yield "CUDA runtime", runtime, NVIDIA
    yield "CLI11", found(first_with(include, "CLI/Version.hpp"), r'#define CLI11_VERSION "([\d.]+)"'), "BSD-3-Clause"
    yield ("nlohmann-json", found(first_with(include, "nlohmann/detail/abi_macros.hpp"),
           r"VERSION_MAJOR (\d+).*?VERSION_MINOR (\d+).*?VERSION_PATCH (\d+)"), "MIT")
    yield "libbacktrace", "NOASSERTION", "BSD-3-Clause"
    yield "D3", found(known.get("GPUMEM_D3", ""), r'version:\s*"([\d.]+)"'), "BSD-3-Clause"


def package(name, version, license_name, identity, path=None):
    one = {"SPDXID": f"SPDXRef-{identity}", "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
           "filesAnalyzed": False, "licenseConcluded": license_name, "licenseDeclared": license_name,
           "copyrightText": "NOASSERTION"}
    if version == "NOASSERTION":
        del one["versionInfo"]
    if path:
        one["packageFileName"] = path.name
        one["checksums"] = [{"algorithm": "SHA256", "checksumValue": digest("sha256", path.read_bytes())}]
    return one


def listed_files(files):
    """Returns the entries of the files, and the verification code of the package that has them."""
    entries, codes = [], []
    for number, (name, mode, data) in enumerate(sorted(files)):
        if mode is None:
            continue
        codes.append(digest("sha1", data))
        entries.append({"SPDXID": f"SPDXRef-file-{number}", "fileName": f"./{name}", "checksums": [
            {"algorithm": "SHA1", "checksumValue": codes[-1]},
            {"algorithm": "SHA256", "checksumValue": digest("sha256", data)}],
            "licenseConcluded": "NOASSERTION", "licenseInfoInFiles": ["NOASSERTION"], "copyrightText": "NOASSERTION"})
    return entries, digest("sha1", "".join(sorted(codes)).encode())


def document(version, epoch, made, files, build, torch_classes):
    """Returns the list as text. `made` are the source archive, the C library's archive and the wheel; `files` those of
    the C library's archive; `torch_classes` the names of the classes in the wheel."""
    source, library, python = made
    packages = [package("gpumem", version, OWN, "source", source),
                package("libgpumem", version, OWN, "library", library),
                package("gpumem-torch", version, OWN, "wheel", python)]
    entries, code = listed_files(files)
    packages[1].update(filesAnalyzed=True, packageVerificationCode={"packageVerificationCodeValue": code},
                       licenseInfoFromFiles=["NOASSERTION"])
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", one["SPDXID"]) for one in packages]
    relations += [("SPDXRef-library", "CONTAINS", one["SPDXID"]) for one in entries]
    relations += [("SPDXRef-library", "GENERATED_FROM", "SPDXRef-source"),
                  ("SPDXRef-wheel", "GENERATED_FROM", "SPDXRef-source")]
    for name, number, license_name in components(build):
        identity = re.sub(r"[^A-Za-z0-9]+", "-", name)
        packages.append(package(name, number, license_name, identity))
        relations.append(("SPDXRef-library", "STATIC_LINK", f"SPDXRef-{identity}"))
        if name in ("CCCL", "CUDA runtime", "libbacktrace"):
            relations.append(("SPDXRef-wheel", "STATIC_LINK", f"SPDXRef-{identity}"))
    for name in torch_classes:
        number = name.removesuffix(".so").removeprefix("torch-")
        packages.append(package("PyTorch", number, "BSD-3-Clause", f"PyTorch-{number}"))
        relations.append((f"SPDXRef-PyTorch-{number}", "BUILD_DEPENDENCY_OF", "SPDXRef-wheel"))
    made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    return json.dumps({
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"gpumem-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/gpumem-{version}-{digest('sha256', library.read_bytes())}",
        "creationInfo": {"created": made_at, "creators": ["Organization: gpumem", f"Tool: package.py-{version}"]},
        "packages": packages, "files": entries,
        "relationships": [{"spdxElementId": first, "relationshipType": kind, "relatedSpdxElement": second}
                          for first, kind, second in relations],
        "hasExtractedLicensingInfos": [{"licenseId": NVIDIA, "name": "NVIDIA CUDA Toolkit End User License Agreement",
                                        "extractedText": "Attachment A of the agreement names the CUDA runtime among "
                                                         "the parts that programs may contain."}],
    }, indent=1) + "\n"
