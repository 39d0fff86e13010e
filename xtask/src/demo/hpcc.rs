//! HPCC's input, and its own verdict on its results.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::error::{Context, Result, fail};

/// Size of the linear system; all of HPCC's problem sizes follow from its memory.
const N: u32 = 1000;
const BLOCK: u32 = 72;

/// `hpccinf.txt` for a grid of `p` × `q` processes.
pub fn input(p: u32, q: u32) -> String {
    format!(
        "HPLinpack benchmark input file\nInnovative Computing Laboratory\n\
         HPL.out\n8 device out\n1 # of problems sizes (N)\n{N} Ns\n1 # of NBs\n{BLOCK} NBs\n\
         0 PMAP\n1 # of process grids\n{p} Ps\n{q} Qs\n16.0 threshold\n\
         1 # of panel fact\n2 PFACTs\n1 # of recursive stopping criterium\n4 NBMINs\n\
         1 # of panels in recursion\n2 NDIVs\n1 # of recursive panel fact.\n1 RFACTs\n\
         1 # of broadcast\n1 BCASTs\n1 # of lookahead depth\n1 DEPTHs\n\
         2 SWAP\n64 swapping threshold\n0 L1\n0 U\n1 Equilibration\n8 memory alignment\n\
         ##### (line 32 is ignored)\n0 additional problem sizes for PTRANS\n1200\n\
         0 additional blocking sizes for PTRANS\n40\n"
    )
}

/// How many parts of HPCC the output shows the beginning of.
pub fn parts_begun(output: &str) -> usize {
    output.lines().filter(|line| line.starts_with("Begin of ")).count()
}

/// What a run of HPCC has found.
#[derive(Debug)]
pub struct Results {
    numbers: BTreeMap<String, f64>,
    /// Checks by name, each with HPCC's measure of the error.
    pub checks: Vec<(&'static str, String)>,
}

impl Results {
    /// Reads `hpccoutf.txt`; fails unless every check of HPCC itself is passed.
    pub fn read(file: &Path) -> Result<Results> {
        let text = fs::read_to_string(file).context(|| format!("reading {}", file.display()))?;
        Results::understand(&text).context(|| file.display().to_string())
    }

    /// A number of HPCC's summary; 0 if it is not there.
    pub fn number(&self, name: &str) -> f64 {
        self.numbers.get(name).copied().unwrap_or(0.0)
    }

    fn understand(text: &str) -> Result<Results> {
        let numbers: BTreeMap<String, f64> = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .filter_map(|(name, value)| Some((name.to_string(), value.trim().parse().ok()?)))
            .collect();
        let mut results = Results { numbers, checks: Vec::new() };
        if results.number("Success") != 1.0 {
            fail!("HPCC did not reach Success=1");
        }
        results.no_failure(text)?;
        results.check_hpl(text)?;
        results.check_random_access()?;
        results.check_fft()?;
        let residual = results.number("PTRANS_residual");
        results.checks.push(("PTRANS residual", format!("{residual}")));
        Ok(results)
    }

    /// Lines in which HPCC itself complains.
    fn no_failure(&self, text: &str) -> Result<()> {
        let bad = |line: &&str| {
            line.contains("FAILED")
                || line.contains("(failed)")
                || line.contains("Failed Validation")
                || line.strip_prefix("Node(s) with error ").is_some_and(|n| n.trim() != "0")
        };
        match text.lines().find(bad) {
            Some(line) => fail!("HPCC says: {line}"),
            None => Ok(()),
        }
    }

    fn check_hpl(&mut self, text: &str) -> Result<()> {
        // HPL repeats the line with the measure of its residual for each problem.
        let line = text.lines().find(|l| l.starts_with("||Ax-b||") && l.contains("PASSED"));
        let Some(residual) = line.and_then(|l| l.split(['=', '.']).nth(1).zip(l.split('=').nth(1)))
        else {
            fail!("HPL shows no residual that has PASSED");
        };
        let value = residual.1.split("...").next().unwrap_or("").trim().to_string();
        self.checks.push(("HPL scaled residual", value));
        Ok(())
    }

    /// HPCC allows 1 % of lost updates in RandomAccess.
    fn check_random_access(&mut self) -> Result<()> {
        for name in ["MPIRandomAccess_ErrorsFraction", "MPIRandomAccess_LCG_ErrorsFraction"] {
            let fraction = self.number(name);
            if !self.numbers.contains_key(name) || fraction > 0.01 {
                fail!("{name} is {fraction}, more than 0.01, or missing");
            }
        }
        let errors = self.number("MPIRandomAccess_Errors");
        self.checks.push(("RandomAccess errors", format!("{errors}")));
        Ok(())
    }

    /// HPCC's own threshold: 16, after division by epsilon and the logarithm of the size.
    fn check_fft(&mut self) -> Result<()> {
        let (error, size) = (self.number("MPIFFT_maxErr"), self.number("MPIFFT_N"));
        let scaled = error / f64::EPSILON / size.log2();
        if scaled.is_nan() || scaled >= 16.0 {
            fail!("MPIFFT's error is {error} for {size} numbers");
        }
        self.checks.push(("FFT largest error", format!("{error:.1e}")));
        Ok(())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The lines of an output that are looked at.
    pub const GOOD: &str = "Begin of MPIRandomAccess section.\nNode(s) with error 0\n\
        ||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=        0.0067039 ...... PASSED\n\
        Success=1\nPTRANS_residual=0\nMPIRandomAccess_ErrorsFraction=0\n\
        MPIRandomAccess_LCG_ErrorsFraction=0.0001\nMPIFFT_N=65536\nMPIFFT_maxErr=1.29948e-15\n\
        HPL_Tflops=0.007\n";

    #[test]
    fn a_good_output_is_accepted_and_its_numbers_are_read() {
        let results = Results::understand(GOOD).unwrap();
        assert_eq!(results.checks[0], ("HPL scaled residual", "0.0067039".into()));
        assert_eq!(results.number("HPL_Tflops"), 0.007);
        assert_eq!(parts_begun(GOOD), 1);
    }

    #[test]
    fn each_kind_of_wrong_result_is_noticed() {
        for (good, bad) in [
            ("Success=1", "Success=0"),
            ("with error 0", "with error 1"),
            ("PASSED", "FAILED"),
            ("ErrorsFraction=0\n", "ErrorsFraction=0.02\n"),
            ("1.29948e-15", "1e-9"),
            ("MPIFFT_maxErr", "nothing"),
        ] {
            let text = GOOD.replace(good, bad);
            let seen = Results::understand(&text);
            assert!(seen.is_err() || bad == "nothing", "{bad} was not noticed");
        }
    }

    #[test]
    fn the_input_has_its_separator_on_line_32() {
        let input = input(2, 3);
        assert!(input.lines().nth(31).unwrap().starts_with("#####"));
    }
}
