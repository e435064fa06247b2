"""What pyproject.toml cannot say: gin/ and tasks/ are installed as limba/shipped/gin and limba/shipped/tasks."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["limba", "limba.*"]), "limba.shipped.gin", "limba.shipped.tasks"],
    package_dir={"limba.shipped.gin": "gin", "limba.shipped.tasks": "tasks"},
    package_data={
        "limba.shipped.gin": ["**/*.gin"],
        "limba.tools.pages.play": ["page.html"],
        "limba.tools.pages.page": ["page.html", "page.css", "page.js"],
    },
)
