"""bfloat16 products where small integers are exact and nothing else is.

catalogue  B1
guard      cases_normal
cases      normal integers
mode       verify
"""


def run(a, b):
    return (a.bfloat16() @ b.bfloat16()).float()
