"""The codes of languages by ISO 639, and the English names that people write in their place."""

from __future__ import annotations

import re

from limba.config import InputError

# Codes of two letters with their names; several codes of one name are listed at each.
LANGUAGES = {
    "aa": "Afar", "ab": "Abkhaz", "ae": "Avestan", "af": "Afrikaans", "ak": "Akan", "am": "Amharic", "an": "Aragonese",
    "ar": "Arabic", "as": "Assamese", "av": "Avar", "ay": "Aymara", "az": "Azerbaijani", "ba": "Bashkir",
    "be": "Belarusian", "bg": "Bulgarian", "bh": "Bihari", "bi": "Bislama", "bm": "Bambara", "bn": "Bengali",
    "bo": "Tibetan", "br": "Breton", "bs": "Bosnian", "ca": "Catalan", "ce": "Chechen", "ch": "Chamorro",
    "co": "Corsican", "cr": "Cree", "cs": "Czech", "cu": "Church Slavonic", "cv": "Chuvash", "cy": "Welsh",
    "da": "Danish", "de": "German", "dv": "Dhivehi", "dz": "Dzongkha", "ee": "Ewe", "el": "Greek", "en": "English",
    "eo": "Esperanto", "es": "Spanish", "et": "Estonian", "eu": "Basque", "fa": "Persian", "ff": "Fula",
    "fi": "Finnish", "fj": "Fijian", "fo": "Faroese", "fr": "French", "fy": "Frisian", "ga": "Irish", "gd": "Gaelic",
    "gl": "Galician", "gn": "Guarani", "gu": "Gujarati", "gv": "Manx", "ha": "Hausa", "he": "Hebrew", "hi": "Hindi",
    "ho": "Hiri Motu", "hr": "Croatian", "ht": "Haitian", "hu": "Hungarian", "hy": "Armenian", "hz": "Herero",
    "ia": "Interlingua", "id": "Indonesian", "ie": "Interlingue", "ig": "Igbo", "ii": "Nuosu", "ik": "Inupiaq",
    "io": "Ido", "is": "Icelandic", "it": "Italian", "iu": "Inuktitut", "ja": "Japanese", "jv": "Javanese",
    "ka": "Georgian", "kg": "Kongo", "ki": "Kikuyu", "kj": "Kwanyama", "kk": "Kazakh", "kl": "Greenlandic",
    "km": "Khmer", "kn": "Kannada", "ko": "Korean", "kr": "Kanuri", "ks": "Kashmiri", "ku": "Kurdish", "kv": "Komi",
    "kw": "Cornish", "ky": "Kyrgyz", "la": "Latin", "lb": "Luxembourgish", "lg": "Ganda", "li": "Limburgish",
    "ln": "Lingala", "lo": "Lao", "lt": "Lithuanian", "lu": "Luba", "lv": "Latvian", "mg": "Malagasy",
    "mh": "Marshallese", "mi": "Maori", "mk": "Macedonian", "ml": "Malayalam", "mn": "Mongolian", "mr": "Marathi",
    "ms": "Malay", "mt": "Maltese", "my": "Burmese", "na": "Nauruan", "nb": "Norwegian", "nd": "North Ndebele",
    "ne": "Nepali", "ng": "Ndonga", "nl": "Dutch", "nn": "Norwegian", "no": "Norwegian", "nr": "South Ndebele",
    "nv": "Navajo", "ny": "Chichewa", "oc": "Occitan", "oj": "Ojibwe", "om": "Oromo", "or": "Odia", "os": "Ossetian",
    "pa": "Punjabi", "pi": "Pali", "pl": "Polish", "ps": "Pashto", "pt": "Portuguese", "qu": "Quechua", "rm": "Romansh",
    "rn": "Kirundi", "ro": "Romanian", "ru": "Russian", "rw": "Kinyarwanda", "sa": "Sanskrit", "sc": "Sardinian",
    "sd": "Sindhi", "se": "Sami", "sg": "Sango", "si": "Sinhala", "sk": "Slovak", "sl": "Slovene", "sm": "Samoan",
    "sn": "Shona", "so": "Somali", "sq": "Albanian", "sr": "Serbian", "ss": "Swati", "st": "Sotho", "su": "Sundanese",
    "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "te": "Telugu", "tg": "Tajik", "th": "Thai", "ti": "Tigrinya",
    "tk": "Turkmen", "tl": "Tagalog", "tn": "Tswana", "to": "Tongan", "tr": "Turkish", "ts": "Tsonga", "tt": "Tatar",
    "tw": "Twi", "ty": "Tahitian", "ug": "Uyghur", "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek", "ve": "Venda",
    "vi": "Vietnamese", "vo": "Volapuk", "wa": "Walloon", "wo": "Wolof", "xh": "Xhosa", "yi": "Yiddish", "yo": "Yoruba",
    "za": "Zhuang", "zh": "Chinese", "zu": "Zulu",
}  # fmt: skip
OTHER_NAMES = {"farsi": "fa", "bokmal": "nb", "bokmål": "nb", "nynorsk": "nn", "slovenian": "sl", "filipino": "tl",
               "mandarin": "zh", "gaeilge": "ga", "castilian": "es", "flemish": "nl"}  # fmt: skip
# A code of two letters, or of three by ISO 639-3, with a script or a country behind it: zh-Hant, pt-BR.
CODE = re.compile(r"([a-z]{2,3})(?:-[A-Za-z0-9]{2,8})*")


def check_codes(codes: str) -> None:
    """Raises InputError for anything but codes of languages; it names the code of a language's English name.

    >>> check_codes("nb"), check_codes("en,ms"), check_codes("zh-Hant"), check_codes("smn")
    (None, None, None, None)
    >>> check_codes("norwegian")
    Traceback (most recent call last):
    limba.config.errors.InputError: --language=norwegian is not a code of ISO 639; Norwegian is nb, nn or no.
    >>> check_codes("burmese")
    Traceback (most recent call last):
    limba.config.errors.InputError: --language=burmese is not a code of ISO 639; Burmese is my.
    """
    for code in codes.split(","):
        code = code.strip()
        match = CODE.fullmatch(code)
        if match and (len(match[1]) == 3 or match[1] in LANGUAGES):
            continue
        name = code.lower()
        codes_of_name = [known for known, english in LANGUAGES.items() if english.lower() == name]
        if name in OTHER_NAMES:
            codes_of_name.append(OTHER_NAMES[name])
        if not codes_of_name:
            raise InputError(
                f"--language={code} is not a code of ISO 639; give one of two or three letters, such as nb, or several"
                " as en,ms."
            )
        *first, last = codes_of_name
        right = f"{', '.join(first)} or {last}" if first else last
        raise InputError(f"--language={code} is not a code of ISO 639; {code.capitalize()} is {right}.")
