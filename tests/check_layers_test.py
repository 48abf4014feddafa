"""tools/check_layers.py accepts the tree as it is and refuses each kind of wrong include."""
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import check_layers  # noqa: E402


class CheckLayers(unittest.TestCase):
    def problems(self, where: str, line: str) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / where
            path.parent.mkdir(parents=True)
            path.write_text(line + "\n")
            return check_layers.problems_of(path, pathlib.Path(folder))

    def test_the_tree_has_no_problems(self):
        self.assertEqual(check_layers.main(), 0)

    def test_an_include_of_a_lower_layer_is_accepted(self):
        self.assertEqual(self.problems("src/engine/a.cc", '#include "model/grid.h"'), [])

    def test_an_upward_include_is_refused(self):
        self.assertIn("must not include rollout", self.problems("src/engine/a.cc", '#include "rollout/group.h"')[0])

    def test_an_include_within_a_layer_is_refused(self):
        self.assertIn("must not include sync", self.problems("src/engine/a.cc", '#include "sync/head.h"')[0])

    def test_torch_outside_its_folder_is_refused(self):
        self.assertIn("src/learn/torch only", self.problems("src/learn/a.cc", "#include <torch/torch.h>")[0])
        self.assertEqual(self.problems("src/learn/torch/a.cc", "#include <torch/torch.h>"), [])

    def test_an_unknown_module_is_refused(self):
        self.assertIn("has no place", self.problems("src/novel/a.cc", "")[0])


if __name__ == "__main__":
    unittest.main()
